"""The models of lending, until now of `cluster`, over the tables that there are: no table is touched. What
`cluster` knew of them goes in its 0012, and the tables get their own names in 0002."""

import uuid

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("cluster", "0011_ageing_weight"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.CreateModel(
                    name='InferenceCluster',
                    fields=[
                        ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                        ('name', models.SlugField(max_length=64, unique=True)),
                        ('credential_digest', models.CharField(blank=True, max_length=64, null=True, unique=True)),
                        ('credential_issued_at', models.DateTimeField(blank=True, null=True)),
                        ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                        ('lending', models.BooleanField(default=True)),
                        ('headroom_fraction', models.FloatField(default=0.02)),
                        ('forecast_margin_fraction', models.FloatField(default=0.0)),
                        ('hysteresis_fraction', models.FloatField(default=0.02)),
                        ('forecaster', models.CharField(default='lstm', max_length=40)),
                        ('asks_back_by_forecast', models.BooleanField(default=False)),
                        ('period_seconds', models.FloatField(default=300.0)),
                        ('minimum_hold_seconds', models.FloatField(default=600.0)),
                        ('minimum_gain_servers', models.PositiveIntegerField(default=1)),
                        ('reclaim_method', models.CharField(default='improved', max_length=10)),
                        ('account', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                        ('cluster', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='inference_clusters', to='cluster.cluster')),
                    ],
                    options={
                        'db_table': 'cluster_inferencecluster',
                        'ordering': ['id'],
                    },
                ),
                migrations.CreateModel(
                    name='LendingEvent',
                    fields=[
                        ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                        ('happened_at', models.DateTimeField(default=django.utils.timezone.now)),
                        ('kind', models.CharField(max_length=40)),
                        ('message', models.TextField()),
                        ('detail', models.JSONField(default=dict)),
                        ('at_home', models.PositiveIntegerField()),
                        ('on_loan', models.PositiveIntegerField()),
                        ('reclaiming', models.PositiveIntegerField()),
                        ('inference_cluster', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='events', to='lending.inferencecluster')),
                    ],
                    options={
                        'db_table': 'cluster_lendingevent',
                        'ordering': ['id'],
                    },
                ),
                migrations.CreateModel(
                    name='LoanOrder',
                    fields=[
                        ('id', models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                        ('source', models.CharField(choices=[('scheduler', 'Inference scheduler'), ('operator', 'Operator'), ('forecast', 'Forecast')], max_length=10)),
                        ('created_by', models.CharField(blank=True, max_length=150)),
                        ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                        ('server_names', models.JSONField(default=list)),
                        ('not_before', models.DateTimeField(default=django.utils.timezone.now)),
                        ('state', models.CharField(choices=[('pending', 'Pending'), ('done', 'Done'), ('withdrawn', 'Withdrawn'), ('refused', 'Refused')], default='pending', max_length=9)),
                        ('reason', models.CharField(blank=True, max_length=300)),
                        ('finished_at', models.DateTimeField(blank=True, null=True)),
                        ('inference_cluster', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='loan_orders', to='lending.inferencecluster')),
                        ('servers', models.ManyToManyField(related_name='loan_orders', to='cluster.server')),
                    ],
                    options={
                        'db_table': 'cluster_loanorder',
                        'ordering': ['-created_at', '-id'],
                    },
                ),
                migrations.CreateModel(
                    name='ReclaimOrder',
                    fields=[
                        ('id', models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                        ('source', models.CharField(choices=[('scheduler', 'Inference scheduler'), ('operator', 'Operator'), ('forecast', 'Forecast')], max_length=10)),
                        ('created_by', models.CharField(blank=True, max_length=150)),
                        ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                        ('count', models.PositiveIntegerField()),
                        ('wanted_by', models.DateTimeField()),
                        ('withdrawn', models.PositiveIntegerField(default=0)),
                        ('ahead_of_usage', models.BooleanField(blank=True, null=True)),
                        ('state', models.CharField(choices=[('pending', 'Pending'), ('reclaiming', 'Reclaiming'), ('returned', 'Returned'), ('confirmed', 'Confirmed')], default='pending', max_length=10)),
                        ('choice', models.JSONField(default=dict)),
                        ('outcome', models.JSONField(default=dict)),
                        ('begun_at', models.DateTimeField(blank=True, null=True)),
                        ('returned_at', models.DateTimeField(blank=True, null=True)),
                        ('confirmed_at', models.DateTimeField(blank=True, null=True)),
                        ('inference_cluster', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='reclaim_orders', to='lending.inferencecluster')),
                    ],
                    options={
                        'db_table': 'cluster_reclaimorder',
                        'ordering': ['-created_at', '-id'],
                    },
                ),
                migrations.CreateModel(
                    name='ReclaimedServer',
                    fields=[
                        ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                        ('position', models.PositiveIntegerField()),
                        ('group', models.CharField(max_length=10)),
                        ('cost', models.FloatField(blank=True, null=True)),
                        ('begun_at', models.DateTimeField(default=django.utils.timezone.now)),
                        ('returned_at', models.DateTimeField(blank=True, null=True)),
                        ('confirmed_at', models.DateTimeField(blank=True, null=True)),
                        ('server', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='reclaims', to='cluster.server')),
                        ('reclaim_order', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='servers', to='lending.reclaimorder')),
                    ],
                    options={
                        'db_table': 'cluster_reclaimedserver',
                        'ordering': ['reclaim_order', 'position'],
                    },
                ),
                migrations.CreateModel(
                    name='TrainedForecaster',
                    fields=[
                        ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                        ('forecaster', models.CharField(max_length=40)),
                        ('content', models.BinaryField()),
                        ('samples', models.PositiveIntegerField()),
                        ('learned_until', models.DateTimeField()),
                        ('error', models.FloatField()),
                        ('persistence_error', models.FloatField()),
                        ('trained_at', models.DateTimeField(default=django.utils.timezone.now)),
                        ('inference_cluster', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='trained_forecasters', to='lending.inferencecluster')),
                    ],
                    options={
                        'db_table': 'cluster_trainedforecaster',
                        'ordering': ['-trained_at'],
                    },
                ),
                migrations.CreateModel(
                    name='ForecasterTraining',
                    fields=[
                        ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                        ('state', models.CharField(choices=[('queued', 'Queued'), ('running', 'Running'), ('done', 'Done'), ('cancelled', 'Cancelled'), ('failed', 'Failed')], default='queued', max_length=9)),
                        ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                        ('wake_at', models.DateTimeField(default=django.utils.timezone.now)),
                        ('attempts', models.PositiveIntegerField(default=0)),
                        ('lease_owner', models.CharField(blank=True, max_length=200)),
                        ('lease_token', models.CharField(blank=True, max_length=40)),
                        ('lease_expires_at', models.DateTimeField(blank=True, null=True)),
                        ('cancel_requested', models.BooleanField(default=False)),
                        ('started_at', models.DateTimeField(blank=True, null=True)),
                        ('finished_at', models.DateTimeField(blank=True, null=True)),
                        ('error', models.TextField(blank=True)),
                        ('forecaster', models.CharField(max_length=40)),
                        ('created_by', models.CharField(blank=True, max_length=150)),
                        ('epochs_done', models.PositiveIntegerField(default=0)),
                        ('epochs_at_most', models.PositiveIntegerField(default=0)),
                        ('inference_cluster', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='trainings', to='lending.inferencecluster')),
                        ('trained', models.OneToOneField(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='lending.trainedforecaster')),
                    ],
                    options={
                        'db_table': 'cluster_forecastertraining',
                        'ordering': ['-id'],
                    },
                ),
                migrations.CreateModel(
                    name='UsageForecast',
                    fields=[
                        ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                        ('period_ends_at', models.DateTimeField()),
                        ('usage', models.FloatField()),
                        ('forecaster', models.CharField(max_length=40)),
                        ('made_at', models.DateTimeField(default=django.utils.timezone.now)),
                        ('inference_cluster', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='forecasts', to='lending.inferencecluster')),
                        ('trained', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='lending.trainedforecaster')),
                    ],
                    options={
                        'db_table': 'cluster_usageforecast',
                        'ordering': ['period_ends_at'],
                    },
                ),
                migrations.CreateModel(
                    name='UsageSample',
                    fields=[
                        ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                        ('period_ends_at', models.DateTimeField()),
                        ('usage', models.FloatField()),
                        ('reported_at', models.DateTimeField(default=django.utils.timezone.now)),
                        ('on_loan_servers', models.PositiveIntegerField(default=0)),
                        ('shortfall_servers', models.PositiveIntegerField(default=0)),
                        ('seen_shortfall_servers', models.PositiveIntegerField(blank=True, null=True)),
                        ('source', models.CharField(blank=True, max_length=200)),
                        ('inference_cluster', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='usage_samples', to='lending.inferencecluster')),
                    ],
                    options={
                        'db_table': 'cluster_usagesample',
                        'ordering': ['period_ends_at'],
                    },
                ),
                migrations.AddConstraint(
                    model_name='inferencecluster',
                    constraint=models.CheckConstraint(condition=models.Q(('headroom_fraction__gte', 0.0), ('headroom_fraction__lte', 1.0), ('forecast_margin_fraction__gte', 0.0), ('forecast_margin_fraction__lte', 1.0), ('hysteresis_fraction__gte', 0.0), ('hysteresis_fraction__lte', 1.0)), name='inference_fractions_are_fractions'),
                ),
                migrations.AddConstraint(
                    model_name='inferencecluster',
                    constraint=models.CheckConstraint(condition=models.Q(('minimum_hold_seconds__gte', 0.0), ('period_seconds__gt', 0.0)), name='inference_times_are_times'),
                ),
                migrations.AddIndex(
                    model_name='lendingevent',
                    index=models.Index(fields=['inference_cluster', 'happened_at'], name='cluster_len_inferen_872366_idx'),
                ),
                migrations.AddConstraint(
                    model_name='loanorder',
                    constraint=models.CheckConstraint(condition=models.Q(models.Q(('finished_at__isnull', True), ('state', 'pending')), models.Q(models.Q(('state', 'pending'), _negated=True), ('finished_at__isnull', False)), _connector='OR'), name='finished_loan_order_has_time'),
                ),
                migrations.AddConstraint(
                    model_name='reclaimorder',
                    constraint=models.CheckConstraint(condition=models.Q(models.Q(('returned_at__isnull', True), ('state__in', ('pending', 'reclaiming'))), models.Q(models.Q(('state__in', ('pending', 'reclaiming')), _negated=True), ('begun_at__isnull', False), ('returned_at__isnull', False)), _connector='OR'), name='returned_reclaim_order_has_times'),
                ),
                migrations.AddConstraint(
                    model_name='reclaimedserver',
                    constraint=models.UniqueConstraint(fields=('reclaim_order', 'server'), name='server_once_per_reclaim'),
                ),
                migrations.AddConstraint(
                    model_name='reclaimedserver',
                    constraint=models.UniqueConstraint(condition=models.Q(('returned_at__isnull', True)), fields=('server',), name='server_returns_once_at_a_time'),
                ),
                migrations.AddConstraint(
                    model_name='reclaimedserver',
                    constraint=models.CheckConstraint(condition=models.Q(('confirmed_at__isnull', True), ('returned_at__isnull', False), _connector='OR'), name='confirmed_server_was_returned'),
                ),
                migrations.AddConstraint(
                    model_name='reclaimedserver',
                    constraint=models.CheckConstraint(condition=models.Q(('returned_at__isnull', True), ('returned_at__gte', models.F('begun_at')), _connector='OR'), name='server_returns_after_its_choice'),
                ),
                migrations.AddConstraint(
                    model_name='forecastertraining',
                    constraint=models.CheckConstraint(condition=models.Q(models.Q(('lease_expires_at__isnull', False), ('state', 'running'), models.Q(('lease_token', ''), _negated=True)), models.Q(models.Q(('state', 'running'), _negated=True), ('lease_expires_at__isnull', True), ('lease_token', '')), _connector='OR'), name='running_training_has_a_lease'),
                ),
                migrations.AddConstraint(
                    model_name='forecastertraining',
                    constraint=models.CheckConstraint(condition=models.Q(models.Q(('finished_at__isnull', False), ('state__in', ('done', 'cancelled', 'failed'))), models.Q(models.Q(('state__in', ('done', 'cancelled', 'failed')), _negated=True), ('finished_at__isnull', True)), _connector='OR'), name='final_training_has_finish_time'),
                ),
                migrations.AddConstraint(
                    model_name='forecastertraining',
                    constraint=models.UniqueConstraint(condition=models.Q(('state__in', ('done', 'cancelled', 'failed')), _negated=True), fields=('inference_cluster', 'forecaster'), name='one_unfinished_training_per_forecaster'),
                ),
                migrations.AddConstraint(
                    model_name='forecastertraining',
                    constraint=models.CheckConstraint(condition=models.Q(('epochs_done__lte', models.F('epochs_at_most'))), name='training_has_known_epochs'),
                ),
                migrations.AddConstraint(
                    model_name='usageforecast',
                    constraint=models.UniqueConstraint(fields=('inference_cluster', 'period_ends_at'), name='forecast_once_per_period'),
                ),
                migrations.AddConstraint(
                    model_name='usageforecast',
                    constraint=models.CheckConstraint(condition=models.Q(('usage__gte', 0.0), ('usage__lte', 1.0)), name='forecast_is_a_share'),
                ),
                migrations.AddConstraint(
                    model_name='usagesample',
                    constraint=models.UniqueConstraint(fields=('inference_cluster', 'period_ends_at'), name='usage_once_per_period'),
                ),
                migrations.AddConstraint(
                    model_name='usagesample',
                    constraint=models.CheckConstraint(condition=models.Q(('usage__gte', 0.0), ('usage__lte', 1.0)), name='usage_is_a_share'),
                ),
            ],
        ),
    ]
