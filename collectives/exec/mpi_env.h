/* SPDX-License-Identifier: Apache-2.0
 * How mpi_find tells mpi_library_open, in another process, which library to open. Private to exec/.
 */
#pragma once

/* "FAMILY VERSION PREFIX": enum mpi_family, the version of mpiexec, and the directory in whose lib
 * folder the library is looked for first. */
#define MPI_ENV "COLLBENCH_MPI"
