"""What a single table's constraints cannot say: a terminal job holds no GPU and runs nothing. The
function of a declined job may be measured on, for whoever asks again."""

from django.db import migrations

FORWARD = """
create function scheduling_terminal_job_has_no_assignment() returns trigger language plpgsql as $$
begin
  if exists (select 1 from scheduling_job j where j.id = new.job_id
             and j.state in ('declined', 'completed', 'failed', 'cancelled'))
     and exists (select 1 from scheduling_assignment a
             join scheduling_generation g on g.id = a.generation_id
             join scheduling_job d on d.id = a.job_id
             where a.id = new.id and a.state in ('waiting', 'held')
             and not (d.state = 'declined' and g.purpose = 'profiling')) then
    raise exception 'terminal job % cannot hold a GPU', new.job_id using errcode = '23514';
  end if;
  return null;
end $$;

create constraint trigger assignment_of_terminal_job after insert or update on scheduling_assignment
  deferrable initially deferred for each row execute function scheduling_terminal_job_has_no_assignment();

create function scheduling_finished_job_lets_go() returns trigger language plpgsql as $$
begin
  if exists (select 1 from scheduling_job j where j.id = new.id
             and j.state in ('declined', 'completed', 'failed', 'cancelled'))
     and exists (select 1 from scheduling_assignment a where a.job_id = new.id and a.state in ('waiting', 'held')) then
    raise exception 'job % became terminal while it holds a GPU', new.id using errcode = '23514';
  end if;
  return null;
end $$;

create constraint trigger terminal_job_holds_nothing after update of state on scheduling_job
  deferrable initially deferred for each row execute function scheduling_finished_job_lets_go();

create function scheduling_terminal_state_is_final() returns trigger language plpgsql as $$
begin
  if old.state in ('declined', 'completed', 'failed', 'cancelled') and new.state <> old.state then
    raise exception 'job % is %, which is final', old.id, old.state using errcode = '23514';
  end if;
  return new;
end $$;

create trigger terminal_state_is_final before update of state on scheduling_job
  for each row execute function scheduling_terminal_state_is_final();
"""

BACKWARD = """
drop trigger terminal_state_is_final on scheduling_job;
drop function scheduling_terminal_state_is_final();
drop trigger terminal_job_holds_nothing on scheduling_job;
drop function scheduling_finished_job_lets_go();
drop trigger assignment_of_terminal_job on scheduling_assignment;
drop function scheduling_terminal_job_has_no_assignment();
"""


class Migration(migrations.Migration):
    replaces = [
        ("scheduling", "0045_job_experts"),
    ]
    dependencies = [("scheduling", "0001_schema")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
