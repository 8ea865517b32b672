#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Configurations of other frameworks in place of --strategy: the same answer as the options they
stand for, refusals with a sentence, and files written by --emit that read back to the same.

Usage: test_config.py PROGRAM [unittest arguments]"""

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAM = ""

MEGATRON = """CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nnodes 2 --nproc_per_node=8 pretrain_gpt.py \\
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size=2 \\
    --num-virtual-stages-per-pipeline-rank 4 --sequence-parallel \\
    --use-distributed-optimizer --overlap-grad-reduce --tp-comm-overlap \\
    --micro-batch-size 2 --global-batch-size 64 --seq-length 4096 \\
    --recompute-granularity full --recompute-method block --recompute-num-layers 1 \\
    --bf16 --fp8-format hybrid --optimizer adam --attention-backend flash \\
    --attention-dropout 0.0 --hidden-dropout 0.0 --make-vocab-size-divisible-by 64"""
MEGATRON_SAME = ("--strategy tp2pp2vpp4zero1sp --micro-batch 2 --global-batch 64 --seq 4096 "
                 "--recompute full:1 --precision fp8 --optimizer adamw --framework megatron "
                 "--feature tp-overlap=on,attention=fa2,vocab-multiple=64,gather-overlap=off")
SHAPE = """ --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm
    --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 128256
    --position-embedding-type 'rope'"""

DEEPSPEED = """{
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 2,
  "zero_optimization": {
    "stage": 2,
    "overlap_comm": true,
    "offload_optimizer": {"device": "none"}
  },
  "bf16": {"enabled": true},
  "fp16": {"enabled": "auto"},
  "optimizer": {"type": "AdamW", "params": {}}
}
"""
DEEPSPEED_SAME = ("--strategy zero2 --micro-batch 2 --accumulation 2 --global-batch 64 --precision bf16 "
                  "--framework deepspeed --optimizer adamw")

TORCHTITAN = """# a comment
[model]
name = "llama3"
flavor = '8B'
converters = ["float8"]

[training]
local_batch_size = 4
seq_len = 8_192  # tokens

[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
enable_async_tensor_parallel = true

[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"

[compile]
enable = true

[quantize.linear.float8]
enable_fsdp_float8_all_gather = true
"""
TORCHTITAN_SAME = ("--strategy tp2fsdp4x2sp --micro-batch 4 --accumulation 1 --seq 8192 "
                   "--precision fp8 --framework torchtitan --recompute selective "
                   "--feature tp-overlap=on,fp8-params=on")

ACCELERATE = """---
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: HYBRID_SHARD # within a machine
  fsdp_activation_checkpointing: true
  fsdp_offload_params: false
mixed_precision: 'bf16'
num_machines: 2
num_processes: 16
"""
ACCELERATE_SAME = ("--strategy fsdp8x2 --precision bf16 --recompute full --framework fsdp "
                   "--feature grad-bytes=2,reduce-bytes=2") # accelerate's FSDP reduces in bf16
CONFIGS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cases", "configs")


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def run_it(self, *words, code=0):
        done = subprocess.run([PROGRAM, *words], stdin=subprocess.DEVNULL, text=True,
                              capture_output=True, timeout=60)
        self.assertEqual(done.returncode, code, f"{words}\n{done.stdout}\n{done.stderr}")
        return done

    def json(self, *words):
        return self.run_it(*words, "--json", "-").stdout

    def file(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def refused(self, words, *parts, sentences=1):
        done = self.run_it("--topo", "dgx2x8", *words, code=2)
        self.assertEqual(len(done.stderr.splitlines()), sentences, done.stderr)
        for part in parts:
            self.assertIn(part, done.stderr)


def without_advice(text):
    """All but what would help: that is said in units of the words (buckets in elements or bytes)."""
    found = json.loads(text)
    found["advice"] = []
    found["notes"] = [note for note in found["notes"]
                      if not re.match("quicker: |would fit|nothing that was tried|no single change ", note)]
    return found


class SameAnswer(Case):
    def check(self, words, same, *more):
        theirs = self.json("--topo", "dgx2x8", *words, *more)
        ours = self.json("--topo", "dgx2x8", *same.split(), *more)
        self.assertEqual(without_advice(theirs), without_advice(ours))
        self.assertGreater(json.loads(ours)["meta"]["step_s"], 0)

    def test_megatron(self):
        self.check(["--megatron-args", MEGATRON], MEGATRON_SAME)
        self.check(["--megatron-args", "@" + self.file("line.sh", MEGATRON + " 2>&1 | tee log")],
                   MEGATRON_SAME)
        self.check(["--megatron-args=" + MEGATRON + SHAPE], MEGATRON_SAME, "--model", "llama3-8b")

    def test_a_shape_is_a_model(self):
        mine = json.loads(self.json("--topo", "dgx2x8", "--megatron-args", MEGATRON + SHAPE))
        other = json.loads(self.json("--topo", "dgx2x8", *MEGATRON_SAME.split()))
        self.assertEqual(mine["rows"], other["rows"])
        self.assertEqual(mine["meta"]["memory_allocated_GiB"],
                         other["meta"]["memory_allocated_GiB"])

    def test_dense_layers(self):
        line = ("--num-layers 4 --hidden-size 512 --num-attention-heads 8 --vocab-size 1000 --swiglu "
                "--num-experts 8 --micro-batch-size 1 --seq-length 512 --bf16 --moe-layer-freq ")
        first, same, none = (self.json("--topo", "dgx2x8", "--megatron-args", line + freq)
                             for freq in ("([0]*1+[1]*3)", "'[0, 1, 1, 1]'", "1"))
        self.assertEqual(first, same)
        self.assertNotEqual(first, none)
        for freq in ("[1,0,1,1]", "[0,1,1]", "2", "[0,1,1,1", "([0]*1+[1]*4)"):
            self.refused(["--megatron-args", line + freq], "is not modelled; known: 1")

    def test_megatron_defaults(self):
        plain = "--micro-batch-size 1 --seq-length 2048 --bf16"
        self.check(["--megatron-args", plain],
                   "--strategy dp16 --micro-batch 1 --accumulation 1 --seq 2048 --precision bf16 "
                   "--recompute none --feature dp-overlap=off,dropout=on")
        self.check(["--megatron-args", plain + " --context-parallel-size 2 --cp-comm-type a2a "
                    "--num-layers-per-virtual-pipeline-stage 4 --pipeline-model-parallel-size 2 "
                    "--recompute-granularity selective --recompute-modules mlp layernorm "
                    "--global-batch-size 32"],
                   "--strategy ulysses2pp2 --layers-per-chunk 4 --micro-batch 1 --global-batch 32 "
                   "--seq 2048 --precision bf16 --recompute mlp+norm "
                   "--feature dp-overlap=off,dropout=on")

    def test_experts(self):
        self.check(["--megatron-args", "--micro-batch-size 1 --seq-length 4096 --bf16 "
                    "--tensor-model-parallel-size 2 --sequence-parallel "
                    "--expert-model-parallel-size 4 --moe-enable-deepep"],
                   "--strategy tp2ep4etp2sp --micro-batch 1 --accumulation 1 --seq 4096 "
                   "--precision bf16 --recompute none "
                   "--feature dp-overlap=off,dropout=on,ep-dedup=on", "--model", "mixtral-8x7b")

    def test_deepspeed(self):
        path = self.file("ds.json", DEEPSPEED)
        self.check(["--deepspeed", path], DEEPSPEED_SAME)
        auto = DEEPSPEED.replace('"train_micro_batch_size_per_gpu": 2', '"train_micro_batch_size_per_gpu": "auto"')
        # 64 / (2 x 16 ranks) = 2 follows
        self.check(["--deepspeed", self.file("auto.json", auto)], DEEPSPEED_SAME)
        tensor = DEEPSPEED_SAME.replace("zero2", "tp2zero2").replace("--accumulation 2", "--accumulation 4")
        late = auto.replace('steps": 2', 'steps": 4')
        self.check(["--deepspeed", self.file("tp.json", late), "--strategy", "tp2"], tensor)
        late = DEEPSPEED.replace('"overlap_comm": true', '"overlap_comm": false')
        self.check(["--deepspeed", self.file("late.json", late)],
                   DEEPSPEED_SAME + " --feature dp-overlap=off")

    def test_overlap_and_offload(self):
        """Words for buckets, gathers ahead, what is on the host: the options they stand for."""
        plain = ("--micro-batch-size 1 --seq-length 2048 --bf16 --use-distributed-optimizer --overlap-grad-reduce ")
        same = "--strategy zero1 --micro-batch 1 --accumulation 1 --seq 2048 --precision bf16 --recompute none --feature dropout=on"
        for line, options in (
                ("--overlap-param-gather", ""),
                ("--overlap-param-gather --ddp-bucket-size 10000000", " --bucket-size 40000000"),
                ("", ",gather-overlap=off"),
                ("--overlap-param-gather --optimizer-cpu-offload", " --offload optimizer"),
                ("--overlap-param-gather --cpu-offloading-num-layers 32 --optimizer-cpu-offload",
                 " --offload optimizer,activations"),
                ("--overlap-param-gather --context-parallel-size 2 --cp-comm-type all_gather",
                 " --cp 2 --cp-comm gather"),
                ("--overlap-param-gather --context-parallel-size 2 --cp-comm-type a2a",
                 " --cp 2 --cp-comm ulysses")):
            self.check(["--megatron-args", plain + line], same + options)
        moe = "--overlap-param-gather --expert-model-parallel-size 4 --moe-expert-capacity-factor 1.25 "
        self.check(["--megatron-args", plain + moe + "--moe-token-dispatcher-type flex"],
                   same.replace("zero1", "zero1ep4") + ",ep-dedup=on --moe-capacity 1.25",
                   "--model", "mixtral-8x7b", "--moe-imbalance", "1.5")
        three = DEEPSPEED.replace('"stage": 2,', '"stage": 3, "reduce_bucket_size": 2e8, '
                                  '"stage3_prefetch_bucket_size": 300000000,')
        host = three.replace('"offload_optimizer": {"device": "none"}',
                             '"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}')
        features = " --feature bucket-params=200000000,prefetch-params=300000000"
        for text, more in ((three, ""), (host, " --offload optimizer,weights")):
            self.check(["--deepspeed", self.file("ds.json", text)],
                       DEEPSPEED_SAME.replace("zero2", "zero3") + features + more)
        yaml = ACCELERATE.replace("params: false", "params: true\n  fsdp_backward_prefetch: NO_PREFETCH")
        self.check(["--accelerate", self.file("a.yaml", yaml)],
                   ACCELERATE_SAME + " --offload optimizer,weights --prefetch 0")
        toml = TORCHTITAN.replace("tensor_parallel_degree = 2", "context_parallel_degree = 2\n"
                                  'context_parallel_rotate_method = "alltoall"')
        toml = toml.replace("enable_async_tensor_parallel = true\n", "")
        toml = toml.replace("seq_len", "enable_cpu_offload = true\nseq_len")
        self.check(["--torchtitan", self.file("t.toml", toml)],
                   TORCHTITAN_SAME.replace("tp2fsdp4x2sp", "cp2fsdp4x2").replace("tp-overlap=on,", "")
                   + " --cp-comm ring --offload optimizer,weights")
        dual = ("--parallelism.pipeline_parallel_degree 4 --parallelism.pipeline_parallel_schedule DualPipeV "
                "--training.local_batch_size 8 --training.seq_len 4096")
        self.check(["--torchtitan", dual],
                   "--strategy pp4zero2 --schedule dualpipev --micro-batch 1 --accumulation 8 --seq 4096 "
                   "--precision bf16 --framework torchtitan --recompute full:4 --feature class=eager,gather-overlap=on")

    def test_torchtitan(self):
        path = self.file("tt.toml", TORCHTITAN)
        self.check(["--torchtitan", path], TORCHTITAN_SAME)
        self.check(["--torchtitan", f"--job.config_file {path} --training.local-batch-size=2"],
                   TORCHTITAN_SAME.replace("--micro-batch 4", "--micro-batch 2"))
        flags = ("--parallelism.pipeline_parallel_degree 4 --training.local_batch_size 8 --training.seq_len 4096 ")
        same = ("--schedule 1f1b --micro-batch 1 --accumulation 8 --seq 4096 --precision bf16 --framework torchtitan "
                "--feature class=eager")
        keep = ",gather-overlap=on"
        # beside a pipeline weights stay once they are gathered, and every second layer is recomputed
        for more, words, feature in (("", "pp4zero2 --recompute full:4", keep),
                            ("--activation_checkpoint.mode none", "pp4zero2 --recompute none", keep),
                            ("--activation_checkpoint.selective_ac_option 3", "pp4zero2 --recompute full:2", keep),
                            ("--activation_checkpoint.selective_ac_option 9", "pp4zero2 --recompute none", keep),
                            ("--parallelism.fsdp_reshard_after_forward always", "pp4fsdp4 --recompute full:4", ""),
                            ("--parallelism.fsdp_reshard_after_forward always --parallelism.data_parallel_shard_degree 2 "
                             "--parallelism.data_parallel_replicate_degree 2", "pp4fsdp2x2 --recompute full:4", ""),
                            ("--parallelism.pipeline_parallel_first_stage_less_layers 1 --parallelism."
                             "pipeline_parallel_last_stage_less_layers 1 --activation_checkpoint.mode full",
                             "pp4zero2 --split embedding,loss --recompute full", keep)):
            self.check(["--torchtitan", flags + more], "--strategy " + words + " " + same + feature)

    def test_torchtitan_words(self):
        usual = "--training.local_batch_size 2 --training.seq_len 4096 "
        same = "--micro-batch 2 --accumulation 1 --seq 4096 --framework torchtitan --feature class=eager%s --strategy "
        for more, words in (
                ("", "fsdp --recompute full:16 --precision bf16"),
                ("--parallelism.pipeline_parallel_schedule Interleaved1F1B", "fsdp --recompute full:16 --precision bf16"),
                ("--parallelism.fsdp_reshard_after_forward never --activation_checkpoint.mode none",
                 "zero2 --recompute none --precision bf16"),
                ("--parallelism.data_parallel_shard_degree 1 --parallelism.data_parallel_replicate_degree 16 "
                 "--activation_checkpoint.mode none", "dp16zero0 --recompute none --precision bf16"),
                ("--compile.enable --compile.components loss --parallelism.tensor_parallel_degree 2 "
                 "--parallelism.enable_async_tensor_parallel --activation_checkpoint.mode full",
                 "tp2fsdpsp --recompute full --precision bf16"),
                ("--model.converters quantize.linear.float8,quantize.grouped --activation_checkpoint.mode none", None),
                ("--model.converters float8,mx", None),
                ("--model.converters float8 --activation_checkpoint.mode none", "fsdp --recompute none --precision fp8")):
            if words is None:
                self.refused(["--torchtitan", usual + more], "--model.converters")
            else:
                self.check(["--torchtitan", usual + more],
                           same % (",gather-overlap=on" if "never" in more else "") + words)
        self.assertEqual(
            without_advice(self.json("--topo", "dgx-b200x2", "--torchtitan",
                                     usual + "--model.converters mx --activation_checkpoint.mode none")),
            without_advice(self.json("--topo", "dgx-b200x2", *(same % "" + "fsdp --recompute none --precision mxfp8").split())))

    def test_a_flavor_that_is_no_preset(self):
        toml = self.file("tt.toml", TORCHTITAN.replace("'8B'", '"debugmodel"'))
        self.refused(["--torchtitan", toml], "llama3-debugmodel")
        self.check(["--torchtitan", toml, "--model", "llama3.2-1b"], TORCHTITAN_SAME + " --model llama3.2-1b")

    def test_accelerate(self):
        self.check(["--accelerate", self.file("fsdp.yaml", ACCELERATE)], ACCELERATE_SAME,
                   "--micro-batch", "2", "--seq", "4096")
        two = ACCELERATE.replace("fsdp_sharding_strategy: HYBRID_SHARD", "fsdp_version: 2")
        self.check(["--accelerate", self.file("two.yaml", two)],
                   ACCELERATE_SAME.replace("fsdp8x2", "fsdp16"))
        named = ACCELERATE.replace("sharding_strategy: HYBRID_SHARD", "reshard_after_forward: SHARD_GRAD_OP")
        grad_op = ACCELERATE_SAME.replace("fsdp8x2", "zero2") + ",gather-overlap=on"
        self.check(["--accelerate", self.file("named.yaml", named)], grad_op)
        kept = ACCELERATE.replace("sharding_strategy: HYBRID_SHARD", "version: 2\n  fsdp_reshard_after_forward: false")
        self.check(["--accelerate", self.file("kept.yaml", kept)], grad_op)
        compiled = ACCELERATE + "dynamo_config:\n  dynamo_backend: INDUCTOR\n"
        self.check(["--accelerate", self.file("c.yaml", compiled)], ACCELERATE_SAME + ",class=fused")
        plain = ACCELERATE.replace("'bf16'", "'no'")
        self.check(["--accelerate", self.file("p.yaml", plain)],
                   "--strategy fsdp8x2 --precision fp32 --recompute full --framework fsdp")

    def test_files_like_those_of_the_projects(self):
        """Whole files as the projects' examples have them: each is what its options say."""
        for words, same in (
                ("--megatron-args @llama3-8b-fp8.sh",
                 "--topo dgx2x8 --framework megatron --strategy tp2zero1sp --micro-batch 1 --global-batch 128 --seq 8192 "
                 "--precision fp8 --optimizer adamw --recompute none --feature fp8-params=on --model llama3-8b"),
                ("--megatron-args @mixtral-8x7b.sh",
                 "--topo dgx-h100x4 --framework megatron --strategy tp2pp4ep4etp2zero1sp --layers-per-chunk 4 --micro-batch 1 "
                 "--global-batch 256 --seq 4096 --precision bf16 --optimizer adamw --recompute core_attn+mlp+norm "
                 "--moe-capacity 1.25 --model mixtral-8x7b"),
                ("--deepspeed zero3-offload.json --seq 4096 --recompute none",
                 "--topo dgx2x8 --framework deepspeed --strategy zero3 --micro-batch 4 --accumulation 4 --global-batch 256 "
                 "--seq 4096 --offload optimizer --optimizer adamw --recompute none "
                 "--feature grad-bytes=4,reduce-bytes=4,bucket-params=500000000"),
                ("--torchtitan llama3-70b.toml",
                 "--topo dgx-h100x32 --framework torchtitan --strategy tp8pp4vpp2fsdp8sp --schedule interleaved --micro-batch 1 "
                 "--accumulation 8 --seq 8192 --precision fp8 --recipe rowwise --recompute selective "
                 "--feature tp-overlap=on --model llama3-70b"),
                ("--torchtitan deepseek-v3.flags",
                 "--topo dgx-h100x32 --framework torchtitan --strategy tp2pp4cp2ep8sp --zero 2 --schedule dualpipev --micro-batch 1 "
                 "--accumulation 8 --seq 4096 --cp-comm ring --precision bf16 --recompute none "
                 "--feature gather-overlap=on --model deepseek-v3"),
                ("--accelerate fsdp1.yaml --seq 4096",
                 "--topo dgx2x8 --framework fsdp --strategy fsdp8x2 --seq 4096 --precision bf16 --recompute none "
                 "--prefetch 1 --feature grad-bytes=2,reduce-bytes=2"),
                ("--accelerate fsdp2.yaml --seq 8192",
                 "--topo dgx2x8 --framework fsdp --strategy cp4fsdp2x2 --seq 8192 --precision bf16 --recompute full --cp-comm ring "
                 "--feature grad-bytes=2,reduce-bytes=2,class=fused")):
            option, name, *more = words.split()
            path = os.path.join(CONFIGS, name.lstrip("@"))
            value = "@" + path if name[0] == "@" else path
            if name.endswith(".flags"):
                with open(path, encoding="utf-8") as file:
                    value = file.read()
            topo = same.split()[:2]
            model = [] if "toml" in name or "flags" in name or "--model" not in same else same.split()[-2:]
            theirs = without_advice(self.json(*topo, *model, option, value, *more))
            ours = without_advice(self.json(*same.split()))
            theirs["notes"] = [note for note in theirs["notes"] if "not read" not in note]
            self.assertEqual(theirs, ours, words)

    def test_what_changes_time_but_is_not_modelled_is_told_apart(self):
        done = self.run_it("--topo", "dgx2x8", "--megatron-args", "--bf16 --seq-length 2048 --micro-batch-size 1 "
                           "--lr 1e-4 --window-size 128,0 --mtp-num-layers 0")
        self.assertIn("# --megatron-args: changes time or memory, but is not modelled, not read: window-size\n", done.stdout)
        self.assertIn("without bearing on the prediction, not read: lr, mtp-num-layers\n", done.stdout)

    def test_launch_scripts(self):
        """What a shell would put in, and options in quotes with their value."""
        plain = "--micro-batch-size 2 --seq-length 2048 --bf16 --tensor-model-parallel-size 4"
        for line in ("M=2\nexport SEQ='2048' TP=4\nA=(--micro-batch-size $M \"--seq-length ${SEQ}\" --bf16)\n"
                     "torchrun ${A[@]} --tensor-model-parallel-size ${TP:-8}",
                     "TP=${2:-4}\n--micro-batch-size ${M:-\"2\"} '--seq-length 2048' --bf16 \"--tensor-model-parallel-size $TP\""):
            self.assertEqual(self.json("--topo", "dgx2x8", "--megatron-args", line),
                             self.json("--topo", "dgx2x8", "--megatron-args", plain), line)
        self.refused(["--megatron-args", "TP=$X --tensor-model-parallel-size $TP"],
                     "--tensor-model-parallel-size: $X is not set in the text")
        self.refused(["--megatron-args", "--tensor-model-parallel-size '$TP' --seq-length $(( 2 * 4 ))"],
                     "size: $TP is not set", "--seq-length: $(( 2 * 4 )) is not set", sentences=2)

    def test_variables_of_a_pasted_text(self):
        """What a text assigns is where it is used; nothing that holds options vanishes."""
        plain = "--tensor-model-parallel-size 4 --seq-length 2048 --bf16 --micro-batch-size 1"
        for line in ("OPTS=\"--tensor-model-parallel-size 4\"; torchrun pretrain_gpt.py $OPTS --seq-length 2048 --bf16 --micro-batch-size 1",
                     "A=\"\n  --tensor-model-parallel-size 4 \\\n  --seq-length 2048\n\"\nB=(--bf16) # and\nB+=(--micro-batch-size 1)\n"
                     "torchrun pretrain_gpt.py ${A} \\\n \"${B[@]}\" 2>&1 | tee $LOG",
                     "N=4; A=(--tensor-model-parallel-size $N --bf16)\nALL=\"${A[*]} --seq-length 2048\"\n"
                     "eval \"torchrun pretrain_gpt.py $ALL --micro-batch-size 1\"",
                     "A='--tensor-model-parallel-size 4 A=1 --seq-length 2048 --bf16 --micro-batch-size 1'",
                     "A=(--tensor-model-parallel-size 4 --bf16)\nB='--seq-length 2048 --micro-batch-size 1'"):
            self.assertEqual(self.json("--topo", "dgx2x8", "--megatron-args", line),
                             self.json("--topo", "dgx2x8", "--megatron-args", plain), line)
        for line, part in (("torchrun pretrain_gpt.py ${MODEL_ARGS[@]} --bf16", "${MODEL_ARGS[@]} is not set in the text"),
                           ("torchrun $DIST_ARGS pretrain_gpt.py --bf16", "$DIST_ARGS is not set in the text"),
                           ("torchrun pretrain_gpt.py --bf16 $MORE", "--bf16: $MORE is not set in the text"),
                           ("torchrun pretrain_gpt.py --lr 1 $MORE --bf16", "$MORE is not set in the text"),
                           ("A='--seq-length 2048' torchrun pretrain_gpt.py --bf16", "A holds options that nothing behind it takes up"),
                           ("A=(--bf16); A=(--fp16); torchrun x.py $A", "A holds options that nothing"),
                           ("A=" + "x" * 1000 + ";" + "A=$A$A;" * 12 + " --bf16", "more than 1048576 bytes")):
            self.refused(["--megatron-args", line], part)
        done = self.run_it("--topo", "dgx2x8", "--megatron-args", "--bf16 --seq-length 2048 --micro-batch-size 1 --save $DIR")
        self.assertIn("not read: save $DIR\n", done.stdout)

    def test_torchtitan_batch(self):
        """Without a word a rank's batch is 8, and the global one that of all ranks."""
        line = "--model.name llama3 --model.flavor 8B --training.seq_len 2048 --training.global_batch_size -1"
        for more, batch in (("", "micro-batch 8, global batch 128"),
                            (" --parallelism.pipeline_parallel_degree 2", "micro-batch 1, global batch 64 sequences, 8 micro-batches")):
            self.assertIn(batch, self.run_it("--topo", "dgx2x8", "--torchtitan", line + more).stdout)
        self.assertIn("micro-batch 2, global batch 32", self.run_it("--topo", "dgx2x8", "--torchtitan", line, "--micro-batch", "2").stdout)

    def test_what_is_switched_off_is_not_read(self):
        """accelerate's FSDP settings without FSDP, DeepSpeed's checkpoints without recomputation."""
        left = "distributed_type: MULTI_GPU\nmixed_precision: bf16\nfsdp_config:\n  fsdp_offload_params: true\n  fsdp_activation_checkpointing: true\n"
        done = self.run_it("--topo", "dgx2x8", "--accelerate", self.file("left.yaml", left), "--seq", "2048")
        self.assertIn("not read: fsdp_config.fsdp_offload_params, fsdp_config.fsdp_activation_checkpointing\n", done.stdout)
        self.assertNotIn("host's memory", done.stdout)
        host = self.file("host.json", DEEPSPEED.replace('"bf16"', '"activation_checkpointing": {"cpu_checkpointing": true}, "bf16"'))
        words = ["--topo", "dgx2x8", "--deepspeed", host, "--seq", "2048"]
        done = self.run_it(*words)
        self.assertIn("is not modelled, not read: activation_checkpointing.cpu_checkpointing\n", done.stdout)
        self.assertNotIn("host's memory", done.stdout)
        same = (DEEPSPEED_SAME + " --seq 2048 --recompute full --offload activations").split()
        self.assertEqual(without_advice(self.json(*words, "--recompute", "full"))["rows"],
                         without_advice(self.json("--topo", "dgx2x8", *same))["rows"])

    def test_what_is_not_read_is_said(self):
        text = self.run_it("--topo", "dgx2x8", "--megatron-args",
                           MEGATRON + " --lr 1e-4 --no-such-thing --data-path a b").stdout
        self.assertIn("not read: lr, no-such-thing, data-path", text)
        self.assertNotIn("not read", self.run_it("--topo", "dgx2x8", "--megatron-args", MEGATRON).stdout)


class Refused(Case):
    def test_beside(self):
        line = ["--megatron-args", MEGATRON]
        self.refused([*line, "--strategy", "tp4"], "--strategy tp4 says tp 4, --megatron-args says 2")
        self.refused([*line, "--seq", "8192"], "--megatron-args says seq 4096, --seq 8192")
        self.refused([*line, "--gpus", "32"], "is for 16 GPUs", "has 32")
        self.refused(["--megatron-args", MEGATRON + SHAPE, "--model", "llama2-7b"],
                     "MLP width 14336", "11008")
        self.refused([*line, "--deepspeed", self.file("a.json", DEEPSPEED)],
                     "--megatron-args and --deepspeed are two configurations")
        toml = self.file("tt.toml", TORCHTITAN)
        self.refused(["--torchtitan", toml, "--model", "llama2-7b"], "is for llama3-8b, --model llama2-7b")

    def test_figures_beside_a_model(self):
        """Each dimension must be the model's, also without those that make a whole shape."""
        model = ["--model", "mixtral-8x7b", "--megatron-args"]
        usual = "--bf16 --micro-batch-size 1 --seq-length 4096 "
        for word, part in (("--num-experts 16", "--num-experts 16: model mixtral-8x7b has 8"),
                           ("--moe-ffn-hidden-size 999", "has 14336"), ("--ffn-hidden-size 999", "has 14336"),
                           ("--vocab-size 7", "has 32000"), ("--kv-channels 64", "has 128"), ("--num-layers 24", "has 32"),
                           ("--group-query-attention --num-query-groups 4", "has 8"),
                           ("--multi-latent-attention", "is otherwise"), ("--normalization LayerNorm", "is otherwise"),
                           ("--moe-shared-expert-intermediate-size 2048", "has 0"), ("--moe-router-topk 4", "has 2"),
                           ("--moe-layer-freq 2", "is not modelled"), ("--moe-layer-freq '([0]*1+[1]*31)'", "has 0"),
                           ("--max-position-embeddings 12", "contradicts --seq-length"),
                           ("--cpu-offloading-num-layers 8", "give 31 of the 32")):
            self.refused([*model, usual + word], part)
        self.refused(["--megatron-args", usual + "--num-layers 32"], "go together; they are 32, 0 and 0")
        self.run_it("--topo", "dgx2x8", *model, usual + "--num-experts 8 --moe-router-topk 2 --ffn-hidden-size 14336 --num-layers 32 "
                    "--swiglu --normalization RMSNorm --disable-bias-linear --moe-layer-freq 1 --cpu-offloading-num-layers 31")

    def test_misspelt(self):
        """A letter wrong is a fault with the word that was meant; a word by its old name too."""
        self.refused(["--megatron-args", "--bf16 --tensor-model-paralel-size 4"], "nearest is tensor-model-parallel-size")
        self.refused(["--megatron-args", "--bf16 --model-parallel-size 4"], "is called --tensor-model-parallel-size now")
        self.refused(["--deepspeed", self.file("m.json", DEEPSPEED.replace("zero_optim", "zero_optem", 1).replace('    "overlap_comm": true,\n', "")
                                               .replace('    "offload_optimizer": {"device": "none"}', '    "x": 1').replace("2,\n    \"x", "2, \"x"))],
                     "zero_optemization.stage: is not known; nearest is zero_optimization.stage")
        self.refused(["--deepspeed", self.file("t.json", '{"zero_optimization": true}')], "an object stands there")

    def test_agreeing_options_are_fine(self):
        self.run_it("--topo", "dgx2x8", "--megatron-args", MEGATRON, "--strategy", "tp2pp2", "--seq", "4K")

    def test_megatron_contradictions(self):
        for line, part in (
                ("--bf16 --fp16", "--fp16: contradicts --bf16"),
                ("--recompute-granularity full", "needs a method"),
                ("--recompute-method uniform", "a method is for full recomputation"),
                ("--num-query-groups 8", "would have no effect"),
                ("--num-virtual-stages-per-pipeline-rank 2", "chunks need a pipeline"),
                ("--tensor-model-parallel-size 2 --tensor-model-parallel-size 4", "given twice"),
                ("--tensor-model-parallel-size $TP", "--tensor-model-parallel-size"),
                ("--tensor-model-parallel-size 0", "--tensor-model-parallel-size"),
                ("--micro-batch-size", "has no value"),
                ("--swiglu 3", "takes no value"),
                ("--recompute-granularity most", "selective, full"),
                ("--recompute-activations --recompute-modules shared_experts", "shared_experts is not modelled"),
                ("--optimizer-cpu-offload --optimizer-offload-fraction .5", "all of the optimizer"),
                ("--optimizer-offload-fraction 1", "would have no effect"),
                ("--overlap-param-gather --use-distributed-optimizer", "--overlap-grad-reduce"),
                ("--overlap-param-gather --overlap-grad-reduce", "nothing to gather"),
                ("--moe-token-dispatcher-type allgather", "alltoall, flex"),
                ("--cp-comm-type ring", "p2p, a2a, all_gather"),
                ("--ddp-bucket-size 0", "--ddp-bucket-size"),
                ("--moe-expert-capacity-factor zero", "--moe-capacity"),
                ("--num-layers 4 --hidden-size 64 --num-attention-heads 4 --cpu-offloading-num-layers 2",
                 "all layers go to the host or none"),
                ("--num-layers 32", "go together"),
                ("--fp8-recipe mxfp8", "a recipe is for fp8")):
            self.refused(["--megatron-args", line + " "], part)
        self.refused(["--megatron-args", "tp 8"], "holds no option")
        self.refused(["--megatron-args", "@/nowhere/line.sh"], "/nowhere/line.sh")

    def test_deepspeed(self):
        def change(old, new):
            self.assertIn(old, DEEPSPEED)
            return ["--deepspeed", self.file("ds.json", DEEPSPEED.replace(old, new))]
        self.refused(change('steps": 2', 'steps": 8'), "batch-triangle", "accumulation 8")
        self.refused(change('"device": "none"', '"device": "nvme"'), "ds.json:8:", "none, cpu")
        self.refused(change('"offload_optimizer": {"device": "none"}', '"offload_param": {"device": "cpu"}'),
                     "ds.json:8:", "stage 3 only")
        self.refused(change('"stage": 2,', '"stage": 0, "cpu_offload": true,'), "stages 1 to 3 only")
        self.refused(change('"stage": 2,', '"stage": 2, "reduce_bucket_size": "big",'), "ds.json:6:")
        self.refused(change('"stage": 2', '"stage": 4'), "ds.json:6:", "stages 0 to 3")
        self.refused(change('"fp16": {"enabled": "auto"}', '"fp16": {"enabled": true}'), "ds.json:11:")
        self.refused(change("AdamW", "Lamb"), "ds.json:12:", "Lamb")
        self.refused(change('"stage": 2', '"stage": "two"'), "ds.json:6:", "two")
        short = DEEPSPEED.replace('  "train_micro_batch_size_per_gpu": 2,\n', "")
        self.refused(["--deepspeed", self.file("s.json", short.replace("64", "60"))],
                     "60 sequences is no multiple of 16", "= 32; nearest: 32 and 64")
        self.refused(["--deepspeed", self.file("l.json", "[1]")], "must be an object")
        self.refused(["--deepspeed", self.file("d.json", '{"a":' * 40 + "1" + "}" * 40)], "nested deeper")

    def test_toml(self):
        for text, part in (
                ("[a\n", "t.toml:1:"), ("[[a]]\n", "t.toml:1:"), ("x\n", "t.toml:1:"),
                ("\na = {b = 1}\n", "t.toml:2:"), ('a = """x\n', "t.toml:1:"),
                ("a = [1,\n2\n", "does not end"), ("a = 1\na = 2\n", "t.toml:2: a is given twice"),
                ("[parallelism]\ntensor_parallel_degree = \"two\"\n", "t.toml:2: parallelism.tensor"),
                ("[activation_checkpoint]\nmode = \"selective\"\nselective_ac_option = \"ops\"\n", "t.toml:3:"),
                ("[activation_checkpoint]\nmode = \"memory_budget\"\n", "none, selective, full"),
                ("[training]\ntensor_parallel_degree = 2\n", "since 2025"),
                ("[quantize.linear.float8]\nenable_fsdp_float8_all_gather = true\nrecipe_name = \"rowwise\"\n"
                 "[model]\nconverters = \"float8\"\n", "t.toml:2: quantize.linear.float8.enable"),
                ("[training]\nbatch_size = 3\n[parallelism]\npipeline_parallel_degree = 2\n"
                 "pipeline_parallel_microbatch_size = 2\n", "t.toml:2: training.batch_size"),
                ("[parallelism]\npipeline_parallel_schedule = \"ZBVZeroBubble\"\n", "t.toml:2:")):
            self.refused(["--torchtitan", self.file("t.toml", text)], part)

    def test_yaml(self):
        for text, part in (
                ("distributed_type: DEEPSPEED\n", "y.yaml:1:"), ("a b\n", "y.yaml:1:"),
                ("a:\n  b:\n    c: 1\n", "y.yaml:3:"), ("a: 1\n  b: 2\n", "y.yaml:2:"),
                ("\ta: 1\n", "y.yaml:1:"), ("- a\n", "y.yaml:1:"), ("a: &x 1\n", "y.yaml:1:"),
                ("a: 1\na: 2\n", "y.yaml:2: a is given twice"),
                (ACCELERATE.replace("_offload_params: false", "_backward_prefetch: SOMETIMES"), "y.yaml:6:"),
                (ACCELERATE.replace("num_machines: 2", "num_machines: 3"), "must be a multiple"),
                (ACCELERATE.replace("_sharding_strategy: HYBRID_SHARD", "_reshard_after_forward: false"),
                 "y.yaml:4:"),
                (ACCELERATE.replace("_sharding_strategy: HYBRID_SHARD",
                                    "_version: 2\n  fsdp_reshard_after_forward: NO_SHARD"), "y.yaml:5:"),
                (ACCELERATE.replace("HYBRID_SHARD", "NO_SHARD\n  fsdp_reshard_after_forward: FULL_SHARD"), "y.yaml:5:"),
                (ACCELERATE.replace("num_processes: 16", "num_processes: 32"), "is for 32 GPUs"),
                (ACCELERATE.replace("HYBRID_SHARD", "SHARD"), "y.yaml:4:")):
            self.refused(["--accelerate", self.file("y.yaml", text)], part)


class RoundTrip(Case):
    READ = {"megatron": ("--megatron-args", "line.sh"), "deepspeed": ("--deepspeed", "ds.json"),
            "torchtitan": ("--torchtitan", "tt.toml"), "fsdp": ("--accelerate", "fsdp.yaml")}

    def strategy(self, rng, emit):
        """A random strategy in options, all of the job stated; it may be illegal."""
        moe = emit != "fsdp" and rng.random() < .15
        words = rng.choice(["", "tp2", "tp4", "pp2", "tp2pp2", "tp2cp2", "cp2", "pp4vpp2", "ulysses2"])
        if emit in ("deepspeed", "fsdp") and rng.random() < .7:
            words = rng.choice(["", "ulysses2"]) if emit == "deepspeed" else rng.choice(["", "", "cp2"])
        words += rng.choice(["ep2", "ep4"]) if moe else ""
        usual = {"megatron": ["zero0", "zero1", "zero2", "fsdp", "fsdp4x2"],
                 "deepspeed": ["zero0", "zero1", "zero2", "zero3", "zero3shards4"],
                 "torchtitan": ["fsdp", "fsdp", "fsdp8x2", "fsdp4x2", "zero2", "zero0"],
                 "fsdp": ["fsdp", "zero2", "fsdp8x2", "zero0"]}[emit]
        words += rng.choice(usual)
        if "tp" in words and (emit == "torchtitan" or rng.random() < .5):
            words += "sp"
        ours = emit == "torchtitan" # it has the fewest words
        line = ["--strategy", words, "--micro-batch", rng.choice("124"), "--seq", rng.choice(["2048", "8192"]),
                "--global-batch", rng.choice(["64", "128"]), "--optimizer", rng.choice(["adamw"] * (20 if ours else 4) + ["momentum", "adam8bit"]),
                "--precision", rng.choice(["bf16", "bf16", "fp8", "fp32"] + ["fp16"] * (not ours)),
                "--recompute", rng.choice(["none", "full", "selective"] + ["full:2", "core_attn", "mlp+norm"] * (rng.random() < .4)),
                "--model", ("deepseek-v3" if ours else "mixtral-8x7b") if moe else "llama3-8b"]
        feature = rng.choice(["", "attention=fa2", "grad-bytes=2", "dp-overlap=off", "graphs=full",
                              "gather-overlap=off", "bucket-params=64000000,bucket-params-per-rank=0",
                              "prefetch=2,prefetch-params=0", "reduce-each=off"] if not ours
                             else ["", "class=eager", "tp-overlap=on", "grad-bytes=2", "gather-overlap=on"])
        more = {"--offload": rng.choice(["", "", "", "optimizer,weights"] + ["optimizer", "activations"] * (not ours)),
                "--feature": feature,
                "--order": rng.choice([""] * 9 + ["tp,cp,pp,dp"]),
                "--split": rng.choice([""] * 7 + ["embedding,loss", "loss"]) if "pp" in words else "",
                "--schedule": rng.choice([""] * 5 + ["gpipe", "dualpipev"]) if "pp" in words else "",
                "--cp-comm": rng.choice(["", "gather", "ring"]) if "cp" in words else "",
                "--recipe": "rowwise" if "fp8" in line and rng.random() < .3 else "",
                "--lora": rng.choice([""] * 19 + ["16"]),
                "--packed": rng.choice([""] * 19 + ["512"]),
                "--moe-imbalance": rng.choice(["", "1.3"]) if moe else "",
                "--moe-capacity": rng.choice(["", "1.25"]) if moe else ""}
        return line + [word for option, value in more.items() if value for word in (option, value)]

    def check(self, emit, line, counts):
        legal = subprocess.run([PROGRAM, "--topo", "dgx2x8", "--framework", emit, *line, "--json", "-"],
                               text=True, capture_output=True, timeout=60)
        done = subprocess.run([PROGRAM, "--topo", "dgx2x8", "--emit", emit, *line], text=True,
                              capture_output=True, timeout=60)
        if legal.returncode:
            self.assertEqual(done.returncode, 2)
            return
        if done.returncode:
            counts["cannot"] += 1
            self.assertEqual(done.stdout, "")
            for sentence in done.stderr.splitlines():
                self.assertIn(f"--emit {emit}: cannot say", sentence)
            return
        counts["written"] += 1
        option, name = self.READ[emit]
        path = self.file(name, done.stdout)
        model = [] if emit in ("megatron", "torchtitan") else ["--model", line[line.index("--model") + 1]]
        words = re.search("beside it:(.*)", done.stderr)
        beside = words[1].split() if words else []
        self.assertEqual("written as --framework" in done.stderr, emit != "megatron", done.stderr)
        if emit == "deepspeed" or emit == "fsdp":
            self.assertEqual(beside[:2], model)
        back = self.json("--topo", "dgx2x8", option, "@" + path if emit == "megatron" else path, *beside)
        back, want = self.figures(back), self.figures(legal.stdout)
        if emit == "megatron": # its shape has no name
            for found in (back, want):
                del found["meta"]["model"]
                found["notes"] = [note for note in found["notes"] if not note.startswith("model ")]
        self.assertEqual(back, want, f"{line}\n{done.stdout}\n{done.stderr}")

    def figures(self, text):
        """All but the note on words that are not read (scripts, wrap policies)."""
        found = without_advice(text)
        found["notes"] = [note for note in found["notes"] if "not read" not in note]
        return found

    def test_random(self):
        rng = random.Random(9)
        for emit in self.READ:
            counts = {"written": 0, "cannot": 0}
            for _ in range(60):
                self.check(emit, self.strategy(rng, emit), counts)
            self.assertGreater(counts["written"], 10, emit)
            self.assertGreater(counts["cannot"], 0, emit)

    def test_another_framework(self):
        """Of a framework that is not the format's, what differs stands beside the file."""
        for emit, words, framework in (("torchtitan", "fsdp8x2", "megatron"), ("fsdp", "fsdp", "torchtitan"),
                                       ("deepspeed", "zero2", "torchtitan")):
            job = ["--topo", "dgx2x8", "--framework", framework, "--strategy", words]
            want = json.loads(self.run_it(*job, "--json", "-").stdout)["meta"]
            done = self.run_it(*job, "--emit", emit)
            self.assertNotIn("written as", done.stderr)
            option, name = self.READ[emit]
            beside = done.stderr.split("beside it:")[1].split()
            self.assertIn("--feature", beside)
            back = json.loads(self.run_it("--topo", "dgx2x8", option, self.file(name, done.stdout), *beside,
                                          "--json", "-").stdout)["meta"]
            for key in ("step_s", "memory_allocated_GiB"):
                self.assertEqual(back[key], want[key], (emit, key))

    def test_models(self):
        for model in ("gpt3-175b", "mixtral-8x7b", "qwen2.5-7b", "deepseek-v3", "qwen3-8b"):
            words = ["--topo", "dgx-h100x32", "--strategy", "tp4sp", "--micro-batch", "1", "--seq", "2048",
                     "--recompute", "none", "--precision", "bf16", "--global-batch", "64", "--model", model]
            done = subprocess.run([PROGRAM, *words, "--emit", "megatron"], text=True, capture_output=True)
            if done.returncode:
                self.assertIn("--emit megatron: ", done.stderr)
                continue
            path = self.file("line.sh", done.stdout)
            back = json.loads(self.json(*words[:2], "--megatron-args", "@" + path))
            self.assertEqual(back["rows"], json.loads(self.json(*words))["rows"], model)

    def test_megatron_words(self):
        """Each word that --emit megatron can write, and back."""
        usual = ["--micro-batch", "1", "--seq", "2048", "--precision", "bf16", "--global-batch", "64",
                 "--recompute", "none", "--framework", "megatron"]
        for more in ("--strategy tp2pp2 --split embedding,loss", "--strategy pp4 --first-stage-layers 5 --last-stage-layers 9",
                     "--strategy pp4vpp2sp", "--strategy tp2ep4sp --model mixtral-8x7b",
                     "--strategy tp2ep4etp2sp --model mixtral-8x7b", "--strategy tp2pp2 --order tp,cp,pp,dp",
                     "--strategy ulysses2tp2", "--strategy cp4", "--recompute mlp+norm",
                     "--recompute core_attn", "--precision mxfp8 --topo dgx-b200x2",
                     "--precision nvfp4 --topo dgx-b200x2 --feature fp8-params=on", "--optimizer momentum",
                     "--feature graphs=partial,ep-overlap=on,ep-dedup=on,p2p-overlap=off",
                     "--feature grad-bytes=2,grad-store-bytes=2,vocab-multiple=64,attention=unfused",
                     "--strategy zero1 --bucket-size 40000000 --offload optimizer",
                     "--strategy zero1 --feature gather-overlap=off --offload optimizer,activations",
                     "--strategy cp4 --cp-comm gather", "--strategy cp4 --cp-comm ulysses",
                     "--strategy ep4 --moe-capacity 1.5 --model mixtral-8x7b", "--strategy pp4 --layers 6,9,9,8",
                     "--strategy tp2 --seq 16384"):
            words = ["--topo", "dgx2x8", *usual, *more.split()]
            if "--seq" in more:
                words = [word for i, word in enumerate(words) if i < 4 or i > 5]
            line = self.run_it(*words, "--emit", "megatron")
            self.assertEqual(line.stderr, "")
            where = ["--topo", "dgx-b200x2" if "b200" in more else "dgx2x8"]
            model = ["--model", "mixtral-8x7b" if "mixtral" in more else "llama3-8b"]
            back = self.json(*where, *model, "--megatron-args", "@" + self.file("l.sh", line.stdout))
            self.assertEqual(self.figures(back), self.figures(self.json(*words)), more)

    def test_cannot(self):
        self.refused(["--emit", "deepspeed", "--strategy", "pp2zero1"], "cannot say pipeline stages 2",
                     sentences=4)
        self.refused(["--emit", "megatron", "--strategy", "tp2", "--schedule", "gpipe", "--lora", "8"],
                     "LoRA rank 8", "schedule", sentences=2)
        self.refused(["--emit", "megatron", "--strategy", "pp4", "--schedule", "dualpipev"],
                     "cannot say schedule dualpipev, it would be read as 1f1b")
        self.refused(["--emit", "fsdp", "--json", "-"], "--emit fsdp writes no prediction")
        self.refused(["--emit", "megatron", "--model", "gemma2-2b"], "--emit megatron: ")
        self.refused(["--emit", "torchtitan", "--model", "mistral-7b-v0.1"], "cannot say model mistral-7b-v0.1")
        self.run_it("--topo", "dgx-h100x32", "--emit", "torchtitan", "--model", "deepseek-v3", "--ep", "8")


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
