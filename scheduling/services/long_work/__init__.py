"""Work that takes minutes: environments, clean-up and the loop of long tasks."""
