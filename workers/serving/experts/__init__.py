"""The servers of one deployment as a group that spreads the experts of a mixture over them (Lina 6)."""
