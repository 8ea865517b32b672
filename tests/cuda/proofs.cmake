# Proofs of the GPU code on the emulation of CUDA: the matrix over both transports, bytes by count,
# and planted faults that must be found. All of it is the same in every build; ranks are processes
# but under the thread sanitizer.

# gpu_matrix(NAME x TRANSPORT t [LABELS ..] [PLUGIN target] ENV NAME=value .. ARGS ..): a share of
# the matrix.
function(gpu_matrix)
  cmake_parse_arguments(T "" "NAME;TRANSPORT;PLUGIN" "ENV;ARGS;LABELS" ${ARGN})
  if(NOT T_PLUGIN)
    set(T_PLUGIN collbench_cudaemu)
  endif()
  house_command(NAME ${T_NAME} SERIAL TIMEOUT 300 LABELS "${T_LABELS}"
                COMMAND matrix --transport ${T_TRANSPORT} ${T_ARGS})
  gpu_environment(${T_NAME} ${T_PLUGIN} ${T_ENV})
endfunction()

# What a test on the emulation runs under, in addition to what all tests have.
function(gpu_environment name plugin)
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT
               COLLBENCH_GPU_PLUGIN=$<TARGET_FILE:${plugin}> CUEMU_DEVICES=8 CUEMU_TIMEOUT_S=60 ${ARGN})
endfunction()

# Shares: every K-th case. Fewer where a sanitizer slows all down; `matrix` alone takes all.
set(some 13)
set(half 31)
set(few 61)
if(SANITIZE)
  set(some 151)
  set(half 211)
  set(few 397)
endif()

# All rows on 2, 3, 4 and 8 GPUs in processes of their own: staged, pull and LL wires, every fourth
# case as a graph, three passes and more with a partial last one; four threads to a block.
gpu_matrix(NAME gpu_matrix_ipc TRANSPORT cuda-ipc ENV CUEMU_THREADS=4
           ARGS --ranks 2,3,4,8 --every ${some})
gpu_matrix(NAME gpu_matrix_peer TRANSPORT cuda-peer ENV CUEMU_THREADS=4
           ARGS --ranks 2,3,4,8 --every ${some})
# Pairs without peer access go through the host: islands of 2 and of 3 GPUs, and none at all.
gpu_matrix(NAME gpu_islands_ipc TRANSPORT cuda-ipc ENV CUEMU_THREADS=4 CUEMU_P2P_GROUP=2
           ARGS --ranks 3,4,8 --every ${few})
gpu_matrix(NAME gpu_islands_peer TRANSPORT cuda-peer ENV CUEMU_THREADS=4 CUEMU_P2P_GROUP=3
           ARGS --ranks 3,4,8 --every ${few})
gpu_matrix(NAME gpu_no_peers TRANSPORT cuda-ipc ENV CUEMU_THREADS=3 CUEMU_P2P_GROUP=1
           ARGS --ranks 2,5 --every ${few})
# Several ranks on one GPU, and an uneven number on two.
gpu_matrix(NAME gpu_shared_ipc TRANSPORT cuda-ipc ENV CUEMU_THREADS=4 CUEMU_DEVICES=1
           ARGS --ranks 2,4,8 --every ${few})
gpu_matrix(NAME gpu_shared_peer TRANSPORT cuda-peer ENV CUEMU_THREADS=4 CUEMU_DEVICES=2
           ARGS --ranks 3,5 --every ${few})
# Threads of a block in an order drawn by lot, at random distances from each other, one per block,
# an odd number, and as many as a block has warps' worth.
gpu_matrix(NAME gpu_order TRANSPORT cuda-ipc ENV CUEMU_THREADS=32 CUEMU_SEED=7
           ARGS --ranks 3,8 --every ${few})
gpu_matrix(NAME gpu_jitter_ipc TRANSPORT cuda-ipc ENV CUEMU_THREADS=3 CUEMU_SEED=11 CUEMU_JITTER=200
           ARGS --ranks 2,3,4 --every ${few})
gpu_matrix(NAME gpu_jitter_peer TRANSPORT cuda-peer ENV CUEMU_THREADS=1 CUEMU_SEED=13
           CUEMU_JITTER=200 ARGS --ranks 2,3,4 --every ${few})
gpu_matrix(NAME gpu_lone_thread TRANSPORT cuda-ipc ENV CUEMU_THREADS=1
           ARGS --ranks 3,4 --every ${few})
# The messages are those of the simulator.
gpu_matrix(NAME gpu_logs_ipc TRANSPORT cuda-ipc ENV CUEMU_THREADS=4
           ARGS --logs --ranks 2,3,4,8 --every ${few})
gpu_matrix(NAME gpu_logs_peer TRANSPORT cuda-peer ENV CUEMU_THREADS=4
           ARGS --logs --ranks 2,3,4,8 --every ${few})
# Ranks as threads of one process: what the thread sanitizer can look at.
gpu_matrix(NAME gpu_threads_ipc TRANSPORT cuda-ipc LABELS tsan ENV CUEMU_THREADS=3 CUEMU_SEED=17
           ARGS --threads --ranks 2,3,4,8 --every ${few})
gpu_matrix(NAME gpu_threads_peer TRANSPORT cuda-peer LABELS tsan ENV CUEMU_THREADS=3
           ARGS --threads --ranks 2,3,4,8 --every ${few})
gpu_matrix(NAME gpu_threads_islands TRANSPORT cuda-ipc LABELS tsan ENV CUEMU_THREADS=4
           CUEMU_P2P_GROUP=2 ARGS --threads --ranks 3,4 --every ${few})

# Buffers on GPUs over transports that know nothing of them, through slots: pinned ones of the host,
# and over shm the sender's GPU's where there is peer access. The messages are the simulator's.
set(nets tcp shm+tcp)
if(libfabric_FOUND)
  list(APPEND nets ofi shm+ofi)
endif()
foreach(net IN LISTS nets)
  gpu_matrix(NAME gpu_${net} TRANSPORT ${net} ENV CUEMU_THREADS=4
             ARGS --gpu --ranks 2,3,4 --every ${half})
  gpu_matrix(NAME gpu_${net}_logs TRANSPORT ${net} ENV CUEMU_THREADS=4 CUEMU_JITTER=100
             CUEMU_SEED=3 ARGS --gpu --logs --ranks 2,3,4 --every ${few})
endforeach()
if(mpich_FOUND)
  gpu_matrix(NAME gpu_mpi TRANSPORT mpi ENV CUEMU_THREADS=4 CUEMU_DEVICES=2
             ARGS --gpu --logs --ranks 2,3,4 --every ${few})
endif()
gpu_matrix(NAME gpu_shm_islands TRANSPORT shm+tcp ENV CUEMU_THREADS=3 CUEMU_P2P_GROUP=2
           ARGS --gpu --ranks 2,3,4 --every ${few})
foreach(net tcp shm+tcp)
  gpu_matrix(NAME gpu_${net}_threads TRANSPORT ${net} LABELS tsan ENV CUEMU_THREADS=3
             CUEMU_P2P_GROUP=2 ARGS --gpu --threads --ranks 2,3,4 --every ${few})
endforeach()

add_executable(gpu_bytes gpu_bytes.c)
target_link_libraries(gpu_bytes PRIVATE exec)
house_command(NAME gpu_bytes SERIAL TIMEOUT 300 COMMAND gpu_bytes)
gpu_environment(gpu_bytes collbench_cudaemu CUEMU_THREADS=4)

# ---- planted faults ----

# plant_host(NAME x FILE f FROM text TO text FOUND regex [ARGS ..] [LABELS ..]): a file of the executor
# with a fault, under buffers on GPUs over TCP.
function(plant_host)
  cmake_parse_arguments(PARSE_ARGV 0 T "" "NAME;FILE;FROM;TO;FOUND" "ARGS;LABELS")
  set(file collectives/exec/${T_FILE})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${file})
  file(READ ${CMAKE_SOURCE_DIR}/${file} text)
  string(FIND "${text}" "${T_FROM}" first)
  string(FIND "${text}" "${T_FROM}" last REVERSE)
  if(first LESS 0 OR NOT first EQUAL last)
    message(FATAL_ERROR "${T_NAME}: ${file} must have this text, once:\n${T_FROM}")
  endif()
  string(REPLACE "${T_FROM}" "${T_TO}" text "${text}")
  file(CONFIGURE OUTPUT ${T_NAME}_${T_FILE} CONTENT "${text}" @ONLY)
  add_executable(${T_NAME}_matrix ${CMAKE_SOURCE_DIR}/tests/matrix.c
                 ${CMAKE_CURRENT_BINARY_DIR}/${T_NAME}_${T_FILE})
  target_link_libraries(${T_NAME}_matrix PRIVATE exec net)
  house_command(NAME ${T_NAME} SERIAL LABELS "${T_LABELS}"
                COMMAND ${T_NAME}_matrix --gpu --transport tcp --plain --ranks 3 --every 97 ${T_ARGS})
  gpu_environment(${T_NAME} collbench_cudaemu CUEMU_THREADS=4 CUEMU_SEED=5 CUEMU_JITTER=100)
  set_tests_properties(${T_NAME} PROPERTIES FAIL_REGULAR_EXPRESSION "^$"
                       PASS_REGULAR_EXPRESSION "${T_FOUND}")
endfunction()

if(NOT SANITIZE)
  # A message is posted, and a slot released, before the kernels at it have ended.
  plant_host(NAME planted_gpu_early FILE exec_host.c FOUND "[1-9][0-9]* wrong elements"
             FROM "    return done;" TO "    return true;")
  # Slots that are not pinned: no kernel may touch them.
  plant_host(NAME planted_gpu_unpinned FILE tcp.c FOUND "neither device memory nor pinned"
             FROM "slots_alloc(spec->rank, slots, stride, err)" TO "mem_calloc(slots, stride)")
elseif(SANITIZE MATCHES "thread")
  plant_host(NAME planted_gpu_early FILE exec_host.c FOUND "WARNING: ThreadSanitizer: data race"
             LABELS tsan ARGS --threads FROM "    return done;" TO "    return true;")
endif()

# plant(NAME x FILE f FROM text TO text [LABELS ..] ENV .. ARGS ..): the plug-in with the first text
# in kernels/cuda/f, which must be there once, replaced by the second, and its interpreter for sums
# of floats alone compiled anew; run by the matrix, which must find wrong elements (the thread
# sanitizer: a race).
function(plant)
  cmake_parse_arguments(PARSE_ARGV 0 T "" "NAME;FILE;FROM;TO" "ENV;ARGS;LABELS")
  set(file kernels/cuda/${T_FILE})
  set(copy ${CMAKE_CURRENT_BINARY_DIR}/${T_NAME})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${file})
  file(READ ${CMAKE_SOURCE_DIR}/${file} text)
  string(FIND "${text}" "${T_FROM}" first)
  string(FIND "${text}" "${T_FROM}" last REVERSE)
  if(first LESS 0 OR NOT first EQUAL last)
    message(FATAL_ERROR "${T_NAME}: ${file} must have this text, once:\n${T_FROM}")
  endif()
  string(REPLACE "${T_FROM}" "${T_TO}" text "${text}")
  file(CONFIGURE OUTPUT ${copy}/${file} CONTENT "${text}" @ONLY)
  set_source_files_properties(planted.cu PROPERTIES LANGUAGE CXX)
  add_library(${T_NAME}_plugin MODULE planted.cu
              $<FILTER:$<TARGET_OBJECTS:collbench_cudaemu>,EXCLUDE,interp_float>)
  target_include_directories(${T_NAME}_plugin BEFORE PRIVATE ${copy})
  target_compile_options(${T_NAME}_plugin PRIVATE -O2 -g1 -ffp-contract=off
                         -Wno-unknown-pragmas)
  target_link_libraries(${T_NAME}_plugin PRIVATE cuemu)
  target_link_options(${T_NAME}_plugin PRIVATE -Wl,-Bsymbolic)
  set_target_properties(${T_NAME}_plugin PROPERTIES PREFIX "")
  gpu_matrix(NAME ${T_NAME} TRANSPORT cuda-ipc LABELS "${T_LABELS}" PLUGIN ${T_NAME}_plugin
             ENV CUEMU_THREADS=4 CUEMU_SEED=5 CUEMU_TIMEOUT_S=4 ${T_ENV} ARGS --plain ${T_ARGS})
  set(found "[1-9][0-9]* wrong elements")
  if(SANITIZE MATCHES "thread")
    set(found "#[0-9]+ (settle|add_arrival|st_release_sys|[ls][dt]_data<[^#]*) [^ ]*/kernels/cuda/")
  endif()
  set_tests_properties(${T_NAME} PROPERTIES FAIL_REGULAR_EXPRESSION "^$"
                       PASS_REGULAR_EXPRESSION "${found}")
endfunction()

if(NOT SANITIZE)
  # A block posts a message before all of its threads have written their part.
  plant(NAME planted_gpu_barrier FILE interp.cuh ENV CUEMU_JITTER=100 ARGS --ranks 3 --every 397
        FROM "    __syncthreads();
    if (lane->stop) return false;
    for (uint32_t k = thread; k < count; k += nthreads) {
        settle("
        TO "    for (uint32_t k = thread; k < count; k += nthreads) {
        settle(")
  # A sender does not wait for room in the slots.
  plant(NAME planted_gpu_credit FILE interp.cuh ENV CUEMU_JITTER=100 ARGS --ranks 3 --every 397
        FROM "return number < wire.depth || await(at, wire.released, number - wire.depth + 1);"
        TO "return true;")
  # A receiver waits for the message before the one that it reads.
  plant(NAME planted_gpu_off_by_one FILE interp.cuh ENV CUEMU_JITTER=100 ARGS --ranks 3 --every 397
        FROM "return await(at, wire.posted, number + 1);"
        TO "return await(at, wire.posted, number);")
elseif(SANITIZE MATCHES "thread")
  # A flag without release: on x86 only the sanitizer can tell.
  plant(NAME planted_gpu_release FILE prims.cuh LABELS tsan ARGS --threads --ranks 3 --every 97
        FROM "static inline void st_release_sys(uint64_t *flag, uint64_t value)
{
    cuemu_check(flag, sizeof *flag);
    cuemu_jitter();
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);"
        TO "static inline void st_release_sys(uint64_t *flag, uint64_t value)
{
    __atomic_store_n(flag, value, __ATOMIC_RELAXED);")
endif()
