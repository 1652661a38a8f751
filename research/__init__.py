"""The published comparison, run again: figures of a paper beside ours, with what explains the differences."""
