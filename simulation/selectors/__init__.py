"""Reading studies, their comparisons and files, and what may be asked. Pages and API read through here
alone."""
