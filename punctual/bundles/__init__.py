"""What the bundle of a training function is: which files of an archive count, and which class is trained.

One rule for the platform that takes bundles, the agents that unpack them, and whoever tries one at home.
Nothing is imported or executed. Needs the standard library alone.
"""
