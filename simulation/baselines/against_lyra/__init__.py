"""What Lyra's evaluation compares with."""
