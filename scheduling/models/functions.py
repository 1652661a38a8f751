"""Training functions: content-addressed bundles, their environments and their scaling curves."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from cluster.models.leased_work import LeasedWork, lease_constraints
from projects.models import Project
from scheduling.choices import CurveState
from scheduling.core.runtime_plans.plan import PlanFamily


class Bundle(models.Model):
    """The bytes of an uploaded function, addressed by their SHA-256 digest. Never changed."""

    digest = models.CharField(max_length=64, primary_key=True)
    content = models.BinaryField()
    size_bytes = models.PositiveIntegerField()
    created_at = models.DateTimeField(default=timezone.now)


class Function(models.Model):
    """A named function of a project; its versions hold the code."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="functions")
    name = models.SlugField(max_length=100)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="function_name_once_per_project")
        ]

    def __str__(self) -> str:
        return self.name


class FunctionVersion(models.Model):
    """One immutable version of a function. Entry, class and ``speed_neutral`` are read from the syntax
    tree."""

    function = models.ForeignKey(Function, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    bundle = models.ForeignKey(Bundle, on_delete=models.PROTECT)
    entry = models.CharField(max_length=200, help_text="module:Class")
    speed_neutral = models.JSONField(default=list)
    #: Numbers of workers on which it runs; empty: powers of two.
    worker_counts = models.JSONField(default=list)
    #: Numbers of experts of its layers, as its source says; empty where it does not say, null without layers.
    experts = models.JSONField(null=True, default=None)
    description = models.TextField(blank=True)
    requirements_digest = models.CharField(max_length=64, blank=True)
    #: Of the bundle, up to a thousand with long paths: whoever reads many rows defers it.
    files = models.JSONField(default=list)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["function", "number"], name="version_number_once_per_function"),
            models.UniqueConstraint(fields=["function", "bundle", "entry"], name="bundle_once_per_function"),
        ]


#: What many jobs are read without where their function's version is joined to them.
UNREAD_OF_VERSION = "function_version__files"


def versions_of_many() -> models.Prefetch[str]:
    """The versions of many jobs in one query, without what is unread of them."""
    return models.Prefetch("function_version", FunctionVersion.objects.defer("files"))


class Environment(LeasedWork):
    """Installed requirements, an overlay on the runtime's environment, keyed by the digest of the file's
    text. ``project`` is the one that asked for its build."""

    digest = models.CharField(max_length=64, primary_key=True)
    requirements = models.TextField()
    project = models.ForeignKey(Project, on_delete=models.SET_NULL, null=True, related_name="+")
    #: What the installer printed: its end while it runs.
    log = models.TextField(blank=True)
    uri = models.CharField(max_length=500, blank=True)
    size_bytes = models.BigIntegerField(default=0)

    class Meta:
        constraints = lease_constraints("environment")


class ScalingCurve(models.Model):
    """Measured throughput by number of GPUs for one curve key (contracts 1).

    ``complete`` once profiling stopped because more GPUs brought nothing; until then higher
    levels may still be measured on idle GPUs.
    """

    key = models.CharField(max_length=64, unique=True)
    function_digest = models.CharField(max_length=64, db_index=True)
    data_digest = models.CharField(max_length=64, blank=True)
    gpu_kind = models.CharField(max_length=100)
    #: Of the runtime plans that its levels were measured under.
    plan_family = models.CharField(max_length=100, default=PlanFamily.DENSE.value)
    hyperparameters = models.JSONField(default=dict)
    #: Sizes of the model's mixture-of-experts layers as a worker reported them (`Mixture`); null without.
    mixture = models.JSONField(null=True, default=None)
    state = models.CharField(max_length=10, choices=CurveState.choices, default=CurveState.UNKNOWN)
    complete = models.BooleanField(default=False)
    failure = models.TextField(blank=True)
    finishing_seconds = models.FloatField(default=0.0)
    #: Of durable states of its jobs, as if one worker had each whole: for how long training stops, and from
    #: then until it is stored. Null until one was stored while training.
    copy_seconds = models.FloatField(null=True, blank=True)
    storing_seconds = models.FloatField(null=True, blank=True)
    #: Of its jobs' points in memory while all copies were there: the greatest age of the newest, in
    #: iterations. Null until such points were measured.
    point_iterations = models.FloatField(null=True, blank=True)
    state_bytes = models.BigIntegerField(default=0)
    created_at = models.DateTimeField(default=timezone.now)
    measured_at = models.DateTimeField(null=True, blank=True)


#: A measurement on an emulated device that overran its pace by more is void.
VOID_OVERRUN = 0.05
#: Levels that say how fast devices are. These alone are compared with each other.
NOT_VOID = Q(overrun__isnull=True) | Q(overrun__lte=VOID_OVERRUN)


class CurveLevel(models.Model):
    """One measured level. ``train_seconds`` is the function's own share of an iteration."""

    curve = models.ForeignKey(ScalingCurve, on_delete=models.CASCADE, related_name="levels")
    gpus = models.PositiveIntegerField()
    iterations_per_second = models.FloatField()
    train_seconds = models.FloatField(default=0.0)
    pause_seconds = models.FloatField(default=0.0)
    memory_bytes = models.BigIntegerField(default=0)
    #: The most that one worker was seen to take of its server, and what is reserved for each; 0 where nobody
    #: looked: then it has its GPU's share.
    host_memory_bytes = models.BigIntegerField(default=0)
    reserved_memory_bytes = models.BigIntegerField(default=0)
    #: On an emulated device: by which fraction measuring took longer than emulated, as the host machine was
    #: too slow; null on real devices and for levels measured before this was noted.
    overrun = models.FloatField(null=True, blank=True)
    profiled_iterations_per_second = models.FloatField(default=0.0)
    profiled_train_seconds = models.FloatField(default=0.0)
    samples = models.PositiveIntegerField(default=1)
    source = models.CharField(
        max_length=10, default="profiled", choices=[("profiled", "Profiled"), ("live", "Live")]
    )
    measured_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["gpus"]
        constraints = [
            models.UniqueConstraint(fields=["curve", "gpus"], name="curve_level_once"),
            models.CheckConstraint(
                condition=Q(gpus__gt=0) & Q(iterations_per_second__gt=0), name="curve_level_positive"
            ),
        ]

    @property
    def void(self) -> bool:
        """Whether it says how fast the host machine is, and not the emulated device. It is kept: the job runs
        on that machine."""
        return self.overrun is not None and self.overrun > VOID_OVERRUN
