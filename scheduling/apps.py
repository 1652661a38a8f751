from django.apps import AppConfig


class SchedulingConfig(AppConfig):
    name = "scheduling"
    verbose_name = "Scheduling"

    def ready(self) -> None:
        from django.db.models.signals import post_delete

        from projects.models import BrowserSession
        from scheduling.services.wakeups import session_ended

        post_delete.connect(session_ended, sender=BrowserSession, dispatch_uid="session-ended")
