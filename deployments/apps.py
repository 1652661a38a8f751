from django.apps import AppConfig


class DeploymentsConfig(AppConfig):
    name = "deployments"
    verbose_name = "Deployments"

    def ready(self) -> None:
        """Register replicas as work of agents, tell lending which servers serve, and keep projects open."""
        from deployments.selectors.serving_servers import serving_servers
        from deployments.services.agent_work import ServingWork
        from deployments.services.projects import close_project
        from lending.services import occupied
        from projects.models import Project
        from projects.services.openness import project_closing
        from scheduling import other_work

        other_work.register(ServingWork())
        occupied.register(serving_servers)
        project_closing.connect(close_project, sender=Project, dispatch_uid="close-project-deployments")
