"""Plans: free capacity over time, stored plans, charges for pauses, and the failure reserve."""
