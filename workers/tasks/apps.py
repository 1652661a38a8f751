from django.apps import AppConfig


class TasksConfig(AppConfig):
    name = "workers.tasks"
    label = "tasks"
    verbose_name = "Tasks"
