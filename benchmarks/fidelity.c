/* The loops that commbench's timed loop is held against, in C: an all-reduce of floats over the same communicator and
 * the same slots. Handles come by address, since a handle is an int in MPICH and a pointer in Open MPI. */
#include <mpi.h>

/* A barrier before each iteration, outside the stamps; taken[i] is iteration i's seconds. */
int with_barrier(void **send, void **recv, int slots, int count, const MPI_Comm *on, int iterations, double *taken)
{
    const MPI_Comm comm = *on;
    int code = 0;
    for (int i = 0; i < iterations; i++) {
        const int slot = i % slots;
        code |= MPI_Barrier(comm);
        const double start = MPI_Wtime();
        code |= MPI_Allreduce(send[slot], recv[slot], count, MPI_FLOAT, MPI_SUM, comm);
        taken[i] = MPI_Wtime() - start;
    }
    return code;
}

/* Back to back, with a stamp after each iteration; stamps[0] is the start, so there is one more than iterations. */
int back_to_back(void **send, void **recv, int slots, int count, const MPI_Comm *on, int iterations, double *stamps)
{
    const MPI_Comm comm = *on;
    int code = MPI_Barrier(comm);
    stamps[0] = MPI_Wtime();
    for (int i = 0; i < iterations; i++) {
        const int slot = i % slots;
        code |= MPI_Allreduce(send[slot], recv[slot], count, MPI_FLOAT, MPI_SUM, comm);
        stamps[i + 1] = MPI_Wtime();
    }
    return code;
}

/* Back to back, with no clock inside the loop; *total is the seconds of all iterations together. */
int stamped_once(void **send, void **recv, int slots, int count, const MPI_Comm *on, int iterations, double *total)
{
    const MPI_Comm comm = *on;
    int code = MPI_Barrier(comm);
    const double start = MPI_Wtime();
    for (int i = 0; i < iterations; i++) {
        const int slot = i % slots;
        code |= MPI_Allreduce(send[slot], recv[slot], count, MPI_FLOAT, MPI_SUM, comm);
    }
    *total = MPI_Wtime() - start;
    return code;
}
