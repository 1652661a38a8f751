"""What ElasticFlow's evaluation compares with."""
