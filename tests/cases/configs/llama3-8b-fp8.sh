#!/bin/bash
# A launch script in the manner of Megatron-LM's examples: arrays, variables, comments, a branch.
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}

GPUS_PER_NODE=8
NUM_NODES=2
MASTER_ADDR=${MASTER_ADDR:-"localhost"}
NODE_RANK=${RANK:-0}
TP_SIZE="2"
SEQ_LENGTH=8192     # tokens
CHECKPOINT_PATH=${1:-"checkpoints/llama3"}

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes ${NUM_NODES}
    --node_rank $NODE_RANK
    --master_addr $MASTER_ADDR
)

MODEL_ARGS=(
    --use-mcore-models
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length $SEQ_LENGTH
    --max-position-embeddings $SEQ_LENGTH
    --position-embedding-type rope
    --normalization RMSNorm
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --swiglu
    --attention-backend fused
    --untie-embeddings-and-output-weights
    --disable-bias-linear
)

TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size ${GLOBAL_BATCH_SIZE:-128}
    --lr 0.00015
    --adam-beta1 0.9
    --bf16
    # --fp16
    --cross-entropy-loss-fusion
)
DDP_ARGS=(
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)
TRAINING_ARGS+=("${DDP_ARGS[@]}")

DTYPE_ARGS=(
    "--fp8-format hybrid"
    "--fp8-amax-history-len 1024"
    "--fp8-param-gather"
)

MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP_SIZE
    #--pipeline-model-parallel-size 4
    --sequence-parallel
)

DATA_ARGS=(
    --mock-data
    "--vocab-size 128256"
    "--split '99,1,0'"
    --save "$CHECKPOINT_PATH"
)

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} ${DTYPE_ARGS[@]} \
    ${MODEL_PARALLEL_ARGS[@]} ${DATA_ARGS[@]}
