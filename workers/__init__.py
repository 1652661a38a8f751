"""Everything that runs work: Celery tasks (`tasks`), the node agent (`agent`), the training runtime
(`runtime`)."""
