from django.apps import AppConfig


class SchedulingConfig(AppConfig):
    name = "scheduling"
    verbose_name = "Scheduling"

    def ready(self) -> None:
        from django.db.models.signals import post_delete, post_save

        from projects.models import BrowserSession, Project, User
        from projects.services.openness import project_closing
        from scheduling.services.requests.projects import close_project
        from scheduling.services.rows.wakeups import account_changed, session_ended

        post_delete.connect(session_ended, sender=BrowserSession, dispatch_uid="session-ended")
        post_save.connect(account_changed, sender=User, dispatch_uid="account-changed")
        project_closing.connect(close_project, sender=Project, dispatch_uid="close-project")
