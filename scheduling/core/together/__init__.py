"""Where ElasticFlow and Lyra meet: promises beside loans."""
