"""A family's name has room for all codecs."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0032_predicted_spans'),
    ]

    operations = [
        migrations.AlterField(
            model_name='gradientplan',
            name='family',
            field=models.CharField(max_length=100),
        ),
        migrations.AlterField(
            model_name='scalingcurve',
            name='plan_family',
            field=models.CharField(default='dense', max_length=100),
        ),
    ]
