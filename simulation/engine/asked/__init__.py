"""What a run is asked."""
