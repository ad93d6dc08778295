# ruff: noqa: E501  compilers print long lines
import pytest

from jaxplan.compile.diagnostics import crash, refusal, warnings

# The program: a + b with a, b (16, 16, 16) float32 at P('y', None, 'x') on a mesh x=4, y=2, constrained to
# P(None, ('x', 'y'), None). Captured from jax 0.10.2 and 0.12.0.1; the oldest wording as in openxla/xla
# issue 15207.
OLD = (
    "2024-07-23 10:00:00.000000: E external/xla/xla/service/spmd/spmd_partitioner.cc:613] [spmd] Involuntary full "
    "rematerialization. The compiler was not able to go from sharding {devices=[2,1,4]<=[4,2]T(1,0)} to "
    "{devices=[1,8,1]<=[8]} without doing a full rematerialization of the tensor for HLO operation: "
    "%add.0 = f32[8,16,4]{2,1,0} add(%p, %p), sharding={devices=[2,1,4]<=[4,2]T(1,0)}, "
    'metadata={op_name="jit(f)/add" source_file="model.py" source_line=93}. You probably want to enrich the sharding '
    "annotations to prevent this from happening.\n"
)
JAX_010 = (
    "W1130 17:25:24.879481   16125 spmd_partitioner.cc:656] [SPMD] Involuntary full rematerialization. The compiler "
    "cannot go from sharding {devices=[2,1,4]<=[4,2]T(1,0)} to {devices=[1,8,1]<=[8]} efficiently for HLO operation "
    "%add.0 = f32[8,16,4]{2,1,0} add(%param, %param), sharding={devices=[2,1,4]<=[4,2]T(1,0)}, "
    'metadata={op_name="jit(f)/add" stack_frame_id=2}. As the last resort, SPMD will replicate the tensor and then '
    "partition it to obtain the target sharding, which is inefficient.\n"
)
JAX_012 = (
    "W1130 17:25:33.591762   16272 spmd_partitioner.cc:666] [SPMD] Involuntary full rematerialization. The compiler "
    "cannot go from sharding {mesh['x'=4,'y'=2], [{'y'}, {}, {'x'}]} to {mesh['x'=4,'y'=2], [{}, {'x', 'y'}, {}]} "
    "efficiently for HLO operation %add.0 = f32[8,16,4]{2,1,0} add(%param, %param), "
    "sharding={mesh['x'=4,'y'=2], [{'y'}, {}, {'x'}]}, "
    'metadata={op_name="jit(f)/add" stack_frame_id=2}. As the last resort, SPMD will replicate the tensor.\n'
)
NOISE = "I1130 17:25:24.651836   16014 pjrt_api.cc:119] GetPjrtApi was found for cuda\n"


@pytest.mark.parametrize(("text", "source"), [(OLD, "model.py:93"), (JAX_010, ""), (JAX_012, "")])
def test_full_rematerialization_in_each_wording(text, source):
    (finding,) = warnings(NOISE + text + NOISE)
    assert finding.kind == "full rematerialization"
    assert finding.operation == "jit(f)/add"
    assert finding.nbytes == 16 * 16 * 16 * 4  # the whole tensor; the message prints one device's eighth
    assert finding.source == source
    assert finding.from_sharding != finding.to_sharding and "16.0 KiB" in finding.message


def test_the_same_warning_twice_is_one_finding():
    assert len(warnings(JAX_010 + JAX_010)) == 1
    assert len(warnings(JAX_010 + JAX_012)) == 2
    assert warnings(NOISE) == ()


def test_partly_replicated_tensors_count_their_parts_only():
    text = JAX_010.replace(
        "[2,1,4]<=[4,2]T(1,0)", "[1,1,2,4]<=[2,2,2]T(1,0,2) last_tile_dim_replicate"
    ).replace("f32[8,16,4]", "bf16[16,512,256]")
    (finding,) = warnings(text)
    assert finding.nbytes == 16 * 512 * 512 * 2


GIB = 2**30


@pytest.mark.parametrize(
    ("message", "needed", "available"),
    [
        # libtpu 0.0.42, float32[65536, 65536] on v5e
        ("RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (40.00G) exceeds available HBM (15.75G).",
         40 * GIB, int(15.75 * GIB)),
        ("E1000: CompileTimeHbmOom: ... required for HLO temporaries (32.00G) exceeds available HBM (15.75G)", 32 * GIB, int(15.75 * GIB)),
        ("XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 33.27G of 30.75G hbm. Exceeded hbm capacity by 2.52G.",
         round(33.27 * GIB), int(30.75 * GIB)),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 549755813888 bytes.", 549755813888, None),
        ("RESOURCE_EXHAUSTED: something new", None, None),
    ],
)  # fmt: skip
def test_out_of_memory_says_what_is_needed_and_what_there_is(message, needed, available):
    finding = refusal(message)
    assert (finding.kind, finding.nbytes, finding.available_bytes) == ("out of memory", needed, available)


def test_other_refusals():
    lock = refusal(
        'ABORTED: Internal error when accessing libtpu multi-process lockfile. Run "$ sudo rm /tmp/libtpu_lockfile".'
    )
    assert lock.kind == "compiler locked" and "ALLOW_MULTIPLE_LIBTPU_LOAD=1" in lock.message
    vmem = refusal("Scoped allocation with size 17.20M and limit 16.00M exceeded scoped vmem limit by 1.20M.")
    assert (vmem.kind, vmem.available_bytes) == ("out of on-chip memory", 16 * 2**20)
    assert refusal("INTERNAL: no idea\nlong story").message == "INTERNAL: no idea"


@pytest.mark.parametrize(
    ("returncode", "stderr", "kind", "words"),
    [
        (-8, "", "compiler crashed", "SIGFPE"),
        (-9, "", "compiler killed", "memory"),
        (-11, "", "compiler crashed", "SIGSEGV"),
        (
            -6,
            "F1130 17:25:33.591762 1 a.cc:1] Check failed: a == b\n",
            "compiler crashed",
            "Check failed: a == b",
        ),
        (-6, "libtpu multi-process lockfile", "compiler locked", "ALLOW_MULTIPLE_LIBTPU_LOAD"),
        (3, "", "compiler crashed", "exit code 3"),
    ],
)
def test_crashes_in_one_sentence(returncode, stderr, kind, words):
    finding = crash(returncode, stderr)
    assert finding.kind == kind and words in finding.message and "\n" not in finding.message
