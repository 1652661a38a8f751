"""Each published format is read as its publishers describe it."""

from __future__ import annotations

from math import floor, inf
from pathlib import Path

import pytest

from scheduling.core.question.snapshot import ServiceClass
from simulation.workloads.catalogue import load_workload, reference_gpu_type
from simulation.workloads.options import WorkloadOptions
from tests.simulation.workloads.helpers import ITP_HEADER, ITP_ROW, table, throughput_of, write


def test_a_derived_itp_row_is_taken_as_it_stands(tmp_path: Path) -> None:
    """Vector V25: the trace's own iterations and deadline, tightness 1.229."""
    trace = write(tmp_path, "itp.csv", f"{ITP_HEADER}\n{ITP_ROW}\n")
    jobs = load_workload(str(trace), throughputs=table(tmp_path))
    assert jobs.job_id == ("6b2d9ccc",)
    assert jobs.iterations.tolist() == [40285.0]
    assert jobs.requested_gpus.tolist() == [4]
    assert jobs.requested_seconds.tolist() == [3890.0]
    tightness = (jobs.deadline_at[0] - jobs.submitted_at[0]) / jobs.requested_seconds[0]
    assert tightness == pytest.approx(1.229, abs=5e-4)
    assert jobs.service_class == (ServiceClass.SLO,)


def test_iterations_of_a_raw_row_are_duration_times_throughput(tmp_path: Path) -> None:
    """Vector V25 the other way: 3,890 s at 10.356 iterations/s are 40,285 iterations."""
    only_bert = (
        "gpu_type,model,global_batch_size,num_gpu,iterations_per_second\nA100,bert,64,4,10.356284859349557\n"
    )
    throughputs = write(tmp_path, "throughput.csv", only_bert)
    trace = write(tmp_path, "raw.csv", "submission_time,duration,num_gpu\n16566,3890,4\n")
    jobs = load_workload(str(trace), throughputs=throughputs)
    assert jobs.iterations.tolist() == [40285.0]
    assert 0.5 * 3890 - 1 <= jobs.deadline_at[0] - 16566 <= 1.5 * 3890


def test_both_spellings_of_elasticflows_columns_give_the_same_jobs(tmp_path: Path) -> None:
    other = "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration"
    first = write(tmp_path, "one.csv", f"{ITP_HEADER}\n{ITP_ROW}\n")
    second = write(tmp_path, "two.csv", f"{other}\n{ITP_ROW}\n")
    itp, elasticflow = (load_workload(str(path), throughputs=table(tmp_path)) for path in (first, second))
    assert itp.deadline_at.tolist() == elasticflow.deadline_at.tolist()
    assert itp.iterations.tolist() == elasticflow.iterations.tolist()


def test_best_effort_jobs_have_no_deadline(tmp_path: Path) -> None:
    rows = "a,0,100,bert,50,64,1,20,1\nb,0,100,bert,50,64,1,20,0\n"
    trace = write(tmp_path, "itp.csv", f"{ITP_HEADER},best_effort\n{rows}")
    jobs = load_workload(str(trace), throughputs=table(tmp_path))
    assert jobs.service_class == (ServiceClass.BEST_EFFORT, ServiceClass.SLO)
    assert jobs.deadline_at.tolist() == [inf, 50.0]


def test_jobs_are_sorted_by_submission_and_then_by_id(tmp_path: Path) -> None:
    rows = "z,5,9,bert,50,64,1,20\nb,1,9,bert,50,64,1,20\na,5,9,bert,50,64,1,20\n"
    jobs = load_workload(
        str(write(tmp_path, "itp.csv", f"{ITP_HEADER}\n{rows}")), throughputs=table(tmp_path)
    )
    assert jobs.job_id == ("b", "a", "z")


def test_a_deadline_before_the_submission_is_kept(tmp_path: Path) -> None:
    trace = write(tmp_path, "itp.csv", f"{ITP_HEADER}\na,100,9,bert,50,64,1,20\n")
    jobs = load_workload(str(trace), throughputs=table(tmp_path))
    assert jobs.deadline_at[0] < jobs.submitted_at[0]


def test_raw_itp_rows_leave_out_what_the_published_traces_leave_out(tmp_path: Path) -> None:
    rows = "-5,3600,1\n0,599,1\n0,3600,3\n0,3600,128\n10,3600,8\n"
    trace = write(tmp_path, "raw.csv", f"submission_time,duration,num_gpu\n{rows}")
    jobs = load_workload(str(trace), throughputs=table(tmp_path))
    assert jobs.submitted_at.tolist() == [10.0]
    assert any("1 jobs shorter than 600 s were left out" in note for note in jobs.notes)
    assert len([note for note in jobs.notes if "left out" in note]) == 4


PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:00,1200.0,1,1200.0,first
2017-10-09 07:00:00,1200.0,8,9600.0,second
2017-10-09 06:00:00,900,2,1800,first
"""


def test_philly_dates_become_seconds_from_the_first_job(tmp_path: Path) -> None:
    jobs = load_workload(str(write(tmp_path, "philly.csv", PHILLY)), throughputs=table(tmp_path))
    assert jobs.submitted_at.tolist() == [0.0, 3600.0, 3660.0]
    assert jobs.requested_gpus.tolist() == [2, 8, 1]
    for row in range(jobs.jobs):
        assert jobs.iterations[row] == floor(jobs.requested_seconds[row] * throughput_of(jobs, row, "A100"))


def test_one_virtual_cluster_of_philly_may_be_chosen(tmp_path: Path) -> None:
    trace = write(tmp_path, "philly.csv", PHILLY)
    jobs = load_workload(f"{trace}:virtual_cluster=second", throughputs=table(tmp_path))
    assert jobs.submitted_at.tolist() == [0.0]
    assert jobs.requested_gpus.tolist() == [8]


def test_several_virtual_clusters_of_philly_may_share_one_cluster(tmp_path: Path) -> None:
    trace = write(tmp_path, "philly.csv", PHILLY + "2017-10-09 08:00:00,1200.0,4,4800.0,third\n")
    jobs = load_workload(f"{trace}:virtual_cluster=third+second", throughputs=table(tmp_path))
    assert jobs.submitted_at.tolist() == [0.0, 3600.0]
    assert jobs.requested_gpus.tolist() == [8, 4]


def test_drawn_models_ran_on_the_gpus_that_the_job_asks_for(tmp_path: Path) -> None:
    rows = "".join(f"{at},3600,4\n" for at in range(20))
    trace = write(tmp_path, "raw.csv", f"submission_time,duration,num_gpu\n{rows}")
    jobs = load_workload(str(trace), throughputs=table(tmp_path))
    assert {profile.model for profile in jobs.profiles} == {"bert"}
    assert set(jobs.requested_gpus.tolist()) == {4}


def test_a_seed_changes_only_drawn_values(tmp_path: Path) -> None:
    rows = "".join(f"{at},3600,1\n" for at in range(40))
    trace = write(tmp_path, "raw.csv", f"submission_time,duration,num_gpu\n{rows}")
    folder = table(tmp_path)
    drawn, again, other = (load_workload(str(trace), throughputs=folder, seed=seed) for seed in (1, 1, 2))
    assert drawn.deadline_at.tolist() == again.deadline_at.tolist() != other.deadline_at.tolist()
    assert drawn.submitted_at.tolist() == other.submitted_at.tolist()


def test_pollux_jobs_train_to_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "pollux_t4" / "ncf"
    for batch, iterations in ((1024, 400), (2048, 200)):
        write(folder, f"validation-{batch}.csv", f"progress,iteration,metric\n1,1,0.1\n9,{iterations},0.7\n")
    write(
        folder,
        "placements.csv",
        "placement,local_bsz,step_time,sync_time\n1,512,0.5,0.1\n1,1024,0.9,0.1\n2,512,0.6,0.2\n2,1024,1.0,0.2\n",
    )
    write(folder, "scalability.csv", "num_nodes,num_replicas,local_bsz,step_time,sync_time\n8,32,512,2,1\n")
    trace = write(
        tmp_path,
        "workload.csv",
        "name,time,application,num_replicas,batch_size\na,0,ncf,1,1024\nb,9,ncf,2,2048\nc,9,ncf,6,1536\n",
    )
    jobs = load_workload(str(trace))
    assert reference_gpu_type(jobs) == "T4"
    assert jobs.iterations.tolist() == [400.0, 200.0, 300.0]
    # One GPU: 1,024 samples in one step of 0.9 s. Two GPUs: 1,024 each in 1.0 s. 6 replicas were not
    # measured.
    assert jobs.requested_gpus.tolist() == [1, 2, 2]
    assert jobs.requested_seconds[:2].tolist() == pytest.approx([400 * 0.9, 200 * 1.0])
    # 2,048 samples do not fit one GPU: two steps of 1,024 that synchronise once.
    profile = jobs.profiles[int(jobs.profile_of[1])]
    one_gpu = profile.by_kind["T4"]
    assert one_gpu.gpus[0] == 1
    assert 1 / one_gpu.iterations_per_second[0] == pytest.approx(0.9 + 0.8)


GAVEL_TABLE = """gpu_type,job_type,num_gpus,steps_per_s
v100,ResNet-18 (batch size 16),1,30
v100,ResNet-18 (batch size 16),2,100
v100,ResNet-18 (batch size 16),8,0
v100_unconsolidated,ResNet-18 (batch size 16),4,70
v100,A3C,1,7
k80,ResNet-18 (batch size 16),1,5
k80,A3C,1,2
"""


def test_gavel_job_time_is_its_steps_over_the_measured_rate(tmp_path: Path) -> None:
    write(tmp_path, "throughputs_isolated.csv", GAVEL_TABLE)
    trace = write(
        tmp_path,
        "gavel.csv",
        "job_type,total_steps,arrival_time_s,num_gpus\nResNet-18 (batch size 16),8000,3.5,2\nA3C,700,9,4\n",
    )
    jobs = load_workload(str(trace))
    assert reference_gpu_type(jobs) == "v100"
    assert jobs.submitted_at.tolist() == [3.5, 9.0]
    assert jobs.requested_seconds.tolist() == pytest.approx([80.0, 100.0], rel=0.01)
    assert jobs.requested_gpus.tolist() == [2, 1]
    resnet = jobs.profiles[int(jobs.profile_of[0])]
    assert resnet.global_batch_size == 128
    assert resnet.by_kind["v100"].gpus.tolist() == [1, 2]


def test_gavels_own_trace_files_are_read(tmp_path: Path) -> None:
    folder = write(tmp_path, "throughputs_isolated.csv", GAVEL_TABLE).parent
    line = "ResNet-18 (batch size 16)\tcd %s && python3 main.py\t--num_steps\t1\t8000\t12.000000\t2\n"
    jobs = load_workload(str(write(tmp_path, "0e4a51.trace", line)), throughputs=folder)
    assert jobs.submitted_at.tolist() == [12.0]
    assert jobs.iterations.tolist() == [1000.0]
    assert jobs.requested_gpus.tolist() == [2]


def test_shockwaves_own_trace_files_are_read(tmp_path: Path) -> None:
    folder = write(tmp_path, "throughputs_isolated.csv", GAVEL_TABLE).parent
    line = "ResNet-18 (batch size 16)\tpython3 m.py\tcifar10\t--n\t1\t8000\t2\tgns\t1\t1.200000\t85\t55\n"
    jobs = load_workload(str(write(tmp_path, "120.trace", line)), throughputs=folder)
    assert jobs.submitted_at.tolist() == [55.0]
    assert jobs.deadline_at.tolist() == [55.0 + floor(1.2 * 85)]
    assert jobs.requested_seconds.tolist() == [85.0]
    assert jobs.iterations.tolist() == [floor(85 * 100 / 8)]
    assert any("adapt their batch" in note for note in jobs.notes)


def test_tiresias_jobs_keep_their_sizes_and_durations(tmp_path: Path) -> None:
    trace = write(
        tmp_path,
        "tiresias.csv",
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n0,1,0,606,vgg19,164,30\n",
    )
    jobs = load_workload(str(trace), throughputs=table(tmp_path))
    assert jobs.requested_gpus.tolist() == [1]
    assert jobs.requested_seconds.tolist() == [164.0]


def test_unmeasured_gpu_count_becomes_the_next_smaller_one(tmp_path: Path) -> None:
    trace = write(tmp_path, "itp.csv", f"{ITP_HEADER}\na,0,650,resnet50,50,128,4,20\n")
    jobs = load_workload(str(trace), throughputs=table(tmp_path))
    assert jobs.requested_gpus.tolist() == [2]
    assert jobs.requested_seconds.tolist() == [100.0]
    assert any("not measured" in note for note in jobs.notes)


def test_soft_and_best_effort_are_drawn_for_jobs_without_a_class(tmp_path: Path) -> None:
    rows = "".join(f"{at},3600,1\n" for at in range(200))
    trace = write(tmp_path, "raw.csv", f"submission_time,duration,num_gpu\n{rows}")
    options = WorkloadOptions(best_effort_share=0.3, soft_share=0.3)
    jobs = load_workload(str(trace), throughputs=table(tmp_path), options=options)
    counts = {kind: jobs.service_class.count(kind) for kind in ServiceClass}
    assert all(30 < count < 110 for count in counts.values())
    assert [kind is ServiceClass.BEST_EFFORT for kind in jobs.service_class] == (
        jobs.deadline_at == inf
    ).tolist()
