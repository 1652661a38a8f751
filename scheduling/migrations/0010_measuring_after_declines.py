"""A declined job's function may be measured on, for whoever asks again; else a terminal job still holds no GPU."""

from django.db import migrations

FUNCTION = """
create or replace function scheduling_terminal_job_has_no_assignment() returns trigger language plpgsql as $$
begin
  if exists (select 1 from scheduling_job j where j.id = new.job_id
             and j.state in ({final}))
     and exists (select 1 from scheduling_assignment a {joined} where a.id = new.id and a.state in ('waiting', 'held'){unless}) then
    raise exception 'terminal job % cannot hold a GPU', new.job_id using errcode = '23514';
  end if;
  return null;
end $$;
"""
FINAL = "'declined', 'completed', 'failed', 'cancelled'"
FORWARD = FUNCTION.format(
    final=FINAL,
    joined="join scheduling_generation g on g.id = a.generation_id join scheduling_job d on d.id = a.job_id",
    unless=" and not (d.state = 'declined' and g.purpose = 'profiling')",
)
BACKWARD = FUNCTION.format(final=FINAL, joined="", unless="")


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0009_another_chance")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
