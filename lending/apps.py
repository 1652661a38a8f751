from django.apps import AppConfig


class LendingConfig(AppConfig):
    name = "lending"
    verbose_name = "Lending"
