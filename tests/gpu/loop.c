/* The loop that commbench's is held against: batches of all-reduces between events, on its communicator and stream. */
#include <cuda_runtime.h>
#include <nccl.h>
#include <stdlib.h>

#define CUDA 1000 /* added to CUDA's codes, to tell them from NCCL's */

/* Store the seconds of a collective, for each batch; return 0, or the code of what failed. */
int loop(ncclComm_t comm, cudaStream_t stream, const void* send, void* recv, size_t count, int batch, int samples,
         double* seconds) {
  int code = 0;
  cudaEvent_t* events = calloc(samples + 1, sizeof *events);
  for (int i = 0; i <= samples && !code; i++) code = cudaEventCreate(&events[i]) ? CUDA : 0;
  if (!code) code = cudaEventRecord(events[0], stream) ? CUDA : 0;
  for (int sample = 0; sample < samples && !code; sample++) {
    for (int i = 0; i < batch && !code; i++) code = ncclAllReduce(send, recv, count, ncclFloat, ncclSum, comm, stream);
    if (!code) code = cudaEventRecord(events[sample + 1], stream) ? CUDA : 0;
  }
  cudaError_t waited = cudaStreamSynchronize(stream);
  if (!code && waited) code = CUDA + waited;
  for (int sample = 0; sample < samples && !code; sample++) {
    float milliseconds;
    cudaError_t error = cudaEventElapsedTime(&milliseconds, events[sample], events[sample + 1]);
    if (error) code = CUDA + error;
    seconds[sample] = milliseconds / 1e3 / batch;
  }
  for (int i = 0; i <= samples; i++)
    if (events[i]) cudaEventDestroy(events[i]);
  free(events);
  return code;
}
