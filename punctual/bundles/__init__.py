"""Training function bundles: the files of an archive that count, and the class that is trained.

Shared by the platform that receives bundles, the agents that unpack them, and local trials. Nothing is
imported or executed. Needs only the standard library.
"""
