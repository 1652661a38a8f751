"""How ElasticFlow and Lyra work together: promises on owned servers, other work also on borrowed ones."""
