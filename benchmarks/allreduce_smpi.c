/* Times one all-reduce of each size given, in the simulated time of SimGrid's SMPI: all ranks begin at one instant, and
   what is printed is when the last of them was through. Compiled by smpicc, started by smpirun. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 1; i < argc; i++) {
        long bytes = atol(argv[i]);
        float *in = SMPI_SHARED_MALLOC(bytes), *out = SMPI_SHARED_MALLOC(bytes);
        double begin = MPI_Wtime(), end, last;
        MPI_Allreduce(&begin, &last, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        begin = last + 10.0; /* of simulated time, which costs nothing */
        usleep((useconds_t)((begin - MPI_Wtime()) * 1e6));
        begin = MPI_Wtime();
        MPI_Allreduce(in, out, bytes / sizeof(float), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        end = MPI_Wtime();
        MPI_Reduce(&end, &last, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0)
            printf("%ld %.12f\n", bytes, last - begin);
        SMPI_SHARED_FREE(in);
        SMPI_SHARED_FREE(out);
    }
    MPI_Finalize();
    return 0;
}
