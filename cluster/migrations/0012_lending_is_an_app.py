"""Inference clusters, their orders and their usage are models of `lending` from here on. Rows, tables and
columns stay: a server's column refers to the same table as before."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("cluster", "0011_ageing_weight"),
        ("lending", "0001_initial"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="enrolmenttoken",
                    name="inference_cluster",
                    field=models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="lending.inferencecluster",
                    ),
                ),
                migrations.AlterField(
                    model_name="server",
                    name="inference_cluster",
                    field=models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="servers",
                        to="lending.inferencecluster",
                    ),
                ),
                migrations.DeleteModel(name="ReclaimedServer"),
                migrations.DeleteModel(name="ReclaimOrder"),
                migrations.DeleteModel(name="LoanOrder"),
                migrations.DeleteModel(name="ForecasterTraining"),
                migrations.DeleteModel(name="UsageForecast"),
                migrations.DeleteModel(name="TrainedForecaster"),
                migrations.DeleteModel(name="UsageSample"),
                migrations.DeleteModel(name="LendingEvent"),
                migrations.DeleteModel(name="InferenceCluster"),
            ],
        ),
    ]
