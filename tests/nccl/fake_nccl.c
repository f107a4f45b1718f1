/* A libnccl.so.2 for tests: the ABI of the real nccl.h over MPI and host memory.
 *
 * MPI is initialised by the caller. Streams are ignored: a call is complete when it returns. The machine it plays is one
 * node without NVSwitch: ring and tree with three protocols, tree for all-reduce only. What the real library refuses,
 * and in which words, is refused in the same way. -DOLD builds 2.27.7, which has no *Config calls and takes NCCL_ALGO
 * and NCCL_PROTO when a communicator is created; 2.32.3 takes both those and algSelection.
 *
 * A communicator that is used after its end ends the process.
 *
 * Environment, read at every use (calls are counted from 1 over all communicators of a process):
 *   FAKE_NCCL_LOG             how tuning lines look: 2.32, 2.30, old, rccl, none
 *   FAKE_NCCL_SUBSTITUTE      ring: whatever is asked for, ring runs and the log says so
 *   FAKE_NCCL_WRONG_AT        the call after which one element is wrong on FAKE_NCCL_DEVICE_RANK
 *   FAKE_NCCL_ASYNC_ERROR_AT  the call that does nothing, nor does any after it; FAKE_NCCL_DEVICE_RANK reports an
 *                             asynchronous error, the others stay busy
 *   FAKE_NCCL_LATE_ERROR_AT   the call that is carried out, and after which FAKE_NCCL_DEVICE_RANK alone is busy and
 *                             reports an asynchronous error
 *   FAKE_NCCL_ERROR_AT        the call that returns FAKE_NCCL_ERROR (1 unless set) and does nothing, on all ranks
 *   FAKE_NCCL_HANG_AT         the call that does nothing, nor does any after it; all ranks stay busy until they abort
 *   FAKE_NCCL_ID_ERROR        1: no id is made
 *   FAKE_NCCL_INIT_ERROR      the number of ranks of which no communicator is made
 *   FAKE_NCCL_NEEDS           registered, symmetric: calls of more than one element need buffers that are so in their
 *                             communicator; a window that is not of one size on all ranks is refused in any case
 *   FAKE_NCCL_DEVICE_RANK     the rank of the communicator that is hit; 0 unless set
 */
#define _GNU_SOURCE
#include <math.h>
#include <mpi.h>
#include <nccl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#ifdef OLD
#define VERSION 22707
#define LOG "2.30" /* names and channels, no cluster size: since 2.25 */
#else
#define VERSION NCCL_VERSION_CODE
#define LOG "2.32"
#endif
#define LEN(array) ((int)(sizeof(array) / sizeof *(array)))
#define CHECK(call) do { ncclResult_t result_ = (call); if (result_ != ncclSuccess) return result_; } while (0)

struct ncclComm {
  MPI_Comm mpi;
  int rank, size;
  int over;              /* destroyed or aborted */
  struct { const char *at, *kind; size_t size; } known[64]; /* memory that was registered, and how */
  int registered;
  int nonblocking;
  int pending;           /* of one that does not block: until the next look at its state */
  unsigned allowed[8];   /* rows that NCCL_ALGO and NCCL_PROTO left, by function */
  char algo[256], proto[256]; /* as they were set */
};

enum { Broadcast, Reduce, AllGather, ReduceScatter, AllReduce, AlltoAll, Gather, Scatter, Functions };
static const char* const functionNames[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce",
                                            "AlltoAll", "Gather", "Scatter"};
static const char* const algorithmNames[] = {"TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"};
static const char* const algorithmTokens[] = {"Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"};
static const char* const protocolNames[] = {"LL", "LL128", "SIMPLE"};
static const char* const typeNames[] = {"ncclInt8", "ncclUint8", "ncclInt32", "ncclUint32", "ncclInt64", "ncclUint64",
                                        "ncclFloat16", "ncclFloat32", "ncclFloat64", "ncclBfloat16"};
static const int typeSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

#define F(function) (1u << (function))
static const struct { const char* name; int algorithm, protocol; unsigned functions; int here; } rows[] = {
  {"TREE_LL", 0, 0, F(AllReduce), 1}, {"TREE_LL128", 0, 1, F(AllReduce), 1}, {"TREE_SIMPLE", 0, 2, F(AllReduce), 1},
  {"RING_LL", 1, 0, 31, 1}, {"RING_LL128", 1, 1, 31, 1}, {"RING_SIMPLE", 1, 2, 31, 1},
  {"COLLNET_DIRECT_SIMPLE", 2, 2, F(AllReduce) | F(AllGather) | F(ReduceScatter), 0},
  {"COLLNET_CHAIN_SIMPLE", 3, 2, F(AllReduce), 0},
  {"NVLS_SIMPLE", 4, 2, F(AllReduce) | F(AllGather) | F(ReduceScatter), 0},
  {"NVLSTREE_SIMPLE", 5, 2, F(AllReduce), 0},
  {"PAT_SIMPLE", 6, 2, F(AllGather) | F(ReduceScatter), 0},
};
#define ALL ((1u << LEN(rows)) - 1)

static char lastError[1024];
static int calls, stuck, failed; /* collective calls so far; whether the device hangs; whether it reports an error */

static ncclResult_t refuse(ncclResult_t result, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(lastError, sizeof lastError, format, arguments);
  va_end(arguments);
  return result;
}

static int setting(const char* name, int otherwise) {
  const char* value = getenv(name);
  return value && *value ? atoi(value) : otherwise;
}

/* ---- log ---- */

static FILE* logFile;
static int logOpen, logTuning; /* whether the variables were read; whether tuning lines are wanted */

static void openLog(void) {
  const char *level = getenv("NCCL_DEBUG"), *subsystems = getenv("NCCL_DEBUG_SUBSYS"), *path = getenv("NCCL_DEBUG_FILE");
  char name[4096] = "", host[256] = "";
  logOpen = 1;
  logTuning = level && !strcasecmp(level, "INFO") && subsystems && (strcasestr(subsystems, "TUNING") || strcasestr(subsystems, "ALL"));
  logFile = stdout;
  if (!path || !*path) return;
  gethostname(host, sizeof host - 1);
  host[strcspn(host, ".")] = 0;
  for (size_t n = 0; *path && n < sizeof name - 300; path++) {
    if (path[0] == '%' && path[1] == 'h') n += sprintf(name + n, "%s", host), path++;
    else if (path[0] == '%' && path[1] == 'p') n += sprintf(name + n, "%d", getpid()), path++;
    else name[n++] = *path;
  }
  FILE* file = fopen(name, "w");
  if (file) logFile = file, setlinebuf(file);
}

#undef ncclResetDebugInit /* a macro of nothing in the header, a symbol in the library */
void ncclResetDebugInit(void) {
  if (logFile && logFile != stdout) fclose(logFile);
  logFile = NULL;
  logOpen = logTuning = 0;
}

static void logTuned(ncclComm_t comm, int function, size_t count, int size, int row) {
  const char* form = getenv("FAKE_NCCL_LOG");
  if (!form || !*form) form = LOG;
  if (!logOpen) openLog();
  if (!logTuning || comm->rank != 0 || !strcmp(form, "none")) return;
  int named = !strcmp(form, "2.32") || !strcmp(form, "2.30");
  int shares = function == AllGather || function == ReduceScatter;
  size_t bytes = count * size * (named || !shares ? 1 : comm->size); /* older lines count all ranks' shares */
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  fprintf(logFile, "%s:%d:%d [0] %sNCCL INFO ", host, getpid(), getpid(), !strcmp(form, "rccl") ? "1558545003174220 " : "");
  if (named)
    fprintf(logFile, "%s: %zu Bytes -> Algo %s proto %s channel{Lo..Hi}={0..%d}%s\n", functionNames[function], bytes,
            algorithmNames[rows[row].algorithm], protocolNames[rows[row].protocol], bytes < 65536 ? 0 : 1,
            strcmp(form, "2.32") ? "" : " cgaClusterSize 0");
  else
    fprintf(logFile, "%zu Bytes -> Algo %d proto %d time %f\n", bytes, rows[row].algorithm, rows[row].protocol, 1.5);
}

/* ---- which row runs ---- */

/* Keep in `allowed` the rows whose algorithm (or protocol) a list names: A,B or ^A,B, and F:A for one function. */
static ncclResult_t restrictRows(const char* list, const char* const* tokens, int n, int protocols, unsigned* allowed) {
  char copy[256], *entries = NULL, *first = NULL;
  unsigned masks[Functions];
  snprintf(copy, sizeof copy, "%s", list);
  for (int function = 0; function < Functions; function++) masks[function] = ALL;
  for (char* entry = strtok_r(copy, ";", &entries); entry; entry = strtok_r(NULL, ";", &entries)) {
    char *colon = strchr(entry, ':'), *items = NULL, *names = colon ? colon + 1 : entry;
    if (!colon && first) return refuse(ncclInvalidUsage, "All entries except the first must have a prefix: \"%s\"", list);
    first = entry;
    unsigned named = 0;
    int inverted = 0, only = -1;
    if (colon) {
      *colon = 0;
      for (only = 0; only < Functions && strcasecmp(entry, functionNames[only]); only++);
      if (only == Functions) return refuse(ncclInvalidUsage, "Unrecognized prefix token \"%s\" when parsing \"%s\"", entry, list);
    }
    if (*names == '^') inverted = 1, names++;
    for (char* name = strtok_r(names, ",", &items); name; name = strtok_r(NULL, ",", &items)) {
      int token = 0;
      while (token < n && strcasecmp(name, tokens[token])) token++;
      if (token == n) return refuse(ncclInvalidUsage, "Unrecognized element token \"%s\" when parsing \"%s\"", name, list);
      for (int row = 0; row < LEN(rows); row++)
        if ((protocols ? rows[row].protocol : rows[row].algorithm) == token) named |= 1u << row;
    }
    for (int function = 0; function < Functions; function++)
      if (only < 0 || only == function) masks[function] = inverted ? ~named : named;
  }
  for (int function = 0; function < Functions; function++) allowed[function] &= masks[function];
  return ncclSuccess;
}

#ifndef OLD
/* Rows that a selection names: terms with commas, of factors with '+', negated by '^', each a prefix; 0 where it cannot
 * be read. */
static unsigned selected(const char* selection) {
  char copy[1024], *terms = NULL, *factors = NULL;
  unsigned mask = 0;
  snprintf(copy, sizeof copy, "%s", selection);
  for (char* term = strtok_r(copy, ",", &terms); term; term = strtok_r(NULL, ",", &terms)) {
    unsigned all = ALL;
    for (char* factor = strtok_r(term, "+", &factors); factor; factor = strtok_r(NULL, "+", &factors)) {
      const char* name = factor + (*factor == '^');
      unsigned found = 0;
      for (int row = 0; row < LEN(rows); row++)
        if (!strncasecmp(rows[row].name, name, strlen(name))) found |= 1u << row;
      if (!found && strncasecmp(name, "symk", 4)) return 0;
      all &= *factor == '^' ? ~found : found;
    }
    mask |= all;
  }
  return mask & ALL;
}
#endif

static ncclResult_t choose(ncclComm_t comm, int function, size_t bytes, ncclDataType_t type,
                           const ncclCollConfig_t* config, int* row) {
  unsigned wanted = comm->allowed[function];
  const char* selection = NULL;
#ifndef OLD
  if (config) {
    if (config->size < offsetof(ncclCollConfig_t, launchCompletionEvent) || config->magic != NCCL_API_MAGIC)
      return refuse(ncclInvalidArgument, "ncclCollConfig_t magic mismatch (got 0x%x, expected 0x%x)", config->magic, NCCL_API_MAGIC);
    selection = config->algSelection && *config->algSelection ? config->algSelection : NULL;
  }
  if (selection) {
    unsigned mask = selected(selection);
    for (int each = 0; each < LEN(rows); each++)
      if (!(rows[each].functions & F(function))) mask &= ~(1u << each);
    if (!mask && config->forceAlgSelection)
      return refuse(ncclInvalidArgument,
                    "config->algSelection \"%s\" cannot be honored for %s (set forceAlgSelection=0 to if need to allow "
                    "fall back to automatic selection)", selection, functionNames[function]);
    if (mask) wanted &= mask;
    else selection = NULL;
  }
#else
  (void)config;
#endif
  *row = -1;
  if (function >= AlltoAll || comm->size == 1) return ncclSuccess;
  const char* substitute = getenv("FAKE_NCCL_SUBSTITUTE");
  if (substitute && !strcasecmp(substitute, "ring")) {
    int protocol = 2;
    for (int each = 0; each < LEN(rows); each++)
      if (wanted != ALL && wanted >> each & 1) protocol = rows[each].protocol;
    *row = 3 + protocol;
    return ncclSuccess;
  }
  const int small = bytes < 65536;
  const int algorithm = small ? 1 : 0;
  for (int attempt = 0; attempt < 2 && *row < 0; attempt++) { /* the preferred algorithm, then any */
    for (int step = 0; step < 3 && *row < 0; step++) {
      int protocol = small ? step : 2 - step;
      for (int each = 0; each < LEN(rows) && *row < 0; each++)
        if (wanted >> each & 1 && rows[each].here && rows[each].functions & F(function) &&
            rows[each].protocol == protocol && (attempt || rows[each].algorithm == algorithm)) *row = each;
    }
  }
  if (*row >= 0) return ncclSuccess;
  if (selection && !config->forceAlgSelection) return choose(comm, function, bytes, type, NULL, row);
  if (selection)
    return refuse(ncclInvalidArgument, "algSelection: no algorithm in the selected set is available for %s", functionNames[function]);
  return refuse(*comm->algo || *comm->proto ? ncclInvalidUsage : ncclInternalError,
                "No algorithm/protocol available for function %s with datatype %s.%s%s%s%s%s%s", functionNames[function],
                typeNames[type], *comm->algo ? " NCCL_ALGO was set to " : "", comm->algo, *comm->algo ? "." : "",
                *comm->proto ? " NCCL_PROTO was set to " : "", comm->proto, *comm->proto ? "." : "");
}

/* ---- numbers ---- */

static double halfToDouble(unsigned short bits) {
  int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  double value = exponent == 31 ? (mantissa ? NAN : INFINITY)
                 : exponent     ? ldexp(mantissa | 1024, exponent - 25)
                                : ldexp(mantissa, -24);
  return bits >> 15 ? -value : value;
}

static unsigned short doubleToHalf(double value) {
  unsigned short sign = signbit(value) ? 0x8000 : 0;
  double size = fabs(value);
  if (isnan(value)) return sign | 0x7e00;
  if (size >= 65520) return sign | 0x7c00; /* rounds beyond the largest */
  if (size == 0) return sign;
  int exponent = ilogb(size) < -14 ? -14 : ilogb(size);
  int mantissa = (int)nearbyint(ldexp(size, 10 - exponent)); /* to even, as the mode of C is by default */
  if (mantissa == 2048) mantissa = 1024, exponent++;
  return sign | (mantissa < 1024 ? mantissa : (exponent + 15) << 10 | (mantissa - 1024));
}

static double bfloatToDouble(unsigned short bits) {
  unsigned wide = (unsigned)bits << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}

static unsigned short doubleToBfloat(double value) {
  float narrow = (float)value;
  unsigned bits;
  memcpy(&bits, &narrow, 4);
  if (isnan(value)) return bits >> 16 | 64;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

#define INTEGER(T, U)                                                       \
  for (size_t i = 0; i < count; i++) {                                      \
    T total = ((const T*)data)[i];                                          \
    for (int r = 1; r < n; r++) {                                           \
      T next = ((const T*)data)[r * count + i];                             \
      switch (op) {                                                         \
        case ncclProd: total = (T)((U)total * (U)next); break;              \
        case ncclMax: total = next > total ? next : total; break;           \
        case ncclMin: total = next < total ? next : total; break;           \
        default: total = (T)((U)total + (U)next);                           \
      }                                                                     \
    }                                                                       \
    ((T*)out)[i] = op == ncclAvg ? (T)(total / n) : total;                  \
  }                                                                         \
  break
#define FLOATING(T, LOAD, STORE)                                            \
  for (size_t i = 0; i < count; i++) {                                      \
    double total = LOAD(((const T*)data)[i]);                               \
    for (int r = 1; r < n; r++) {                                           \
      double next = LOAD(((const T*)data)[r * count + i]);                  \
      switch (op) {                                                         \
        case ncclProd: total *= next; break;                                \
        case ncclMax: total = next > total ? next : total; break;           \
        case ncclMin: total = next < total ? next : total; break;           \
        default: total += next;                                             \
      }                                                                     \
    }                                                                       \
    ((T*)out)[i] = STORE(op == ncclAvg ? total / n : total);                \
  }                                                                         \
  break

/* Reduce n blocks of count elements that lie one after another. */
static void reduceBlocks(void* out, const void* data, int n, size_t count, ncclDataType_t type, ncclRedOp_t op) {
  switch (type) {
    case ncclInt8: INTEGER(int8_t, uint32_t);
    case ncclUint8: INTEGER(uint8_t, uint32_t);
    case ncclInt32: INTEGER(int32_t, uint32_t);
    case ncclUint32: INTEGER(uint32_t, uint32_t);
    case ncclInt64: INTEGER(int64_t, uint64_t);
    case ncclUint64: INTEGER(uint64_t, uint64_t);
    case ncclFloat16: FLOATING(uint16_t, halfToDouble, doubleToHalf);
    case ncclFloat32: FLOATING(float, (double), (float));
    case ncclFloat64: FLOATING(double, (double), (double));
    case ncclBfloat16: FLOATING(uint16_t, bfloatToDouble, doubleToBfloat);
    default: break;
  }
}

/* ---- collectives ---- */

static int struck(const char* name) { return calls == setting(name, -1); }

static void alive(ncclComm_t comm) {
  if (!comm->over) return;
  fprintf(stderr, "fake NCCL: a communicator is used after its end\n");
  abort();
}

/* An error that one rank has when the call is through. */
static void failLate(ncclComm_t comm) {
  if (struck("FAKE_NCCL_LATE_ERROR_AT") && comm->rank == setting("FAKE_NCCL_DEVICE_RANK", 0)) stuck = failed = 1;
}

/* Whether call number `calls` does nothing, by an injected fault now or earlier. */
static int injected(ncclComm_t comm) {
  if (struck("FAKE_NCCL_ASYNC_ERROR_AT")) {
    stuck = 1;
    failed = comm->rank == setting("FAKE_NCCL_DEVICE_RANK", 0);
  }
  if (struck("FAKE_NCCL_HANG_AT")) stuck = 1;
  return stuck;
}

static void spoil(ncclComm_t comm, void* recv, size_t elements, int size) {
  if (struck("FAKE_NCCL_WRONG_AT") && comm->rank == setting("FAKE_NCCL_DEVICE_RANK", 0) && elements)
    ((unsigned char*)recv)[elements / 2 * size + size - 1] ^= 0x2a;
}

static ncclResult_t ready(ncclComm_t comm) {
  alive(comm);
  if (!comm->pending) return ncclSuccess;
  return refuse(ncclInvalidArgument, "Attempt to use communicator before the previous operation returned ncclSuccess");
}

/* A communicator that does not block enqueues every call in the background. */
static ncclResult_t done(ncclComm_t comm) {
  if (!comm->nonblocking) return ncclSuccess;
  comm->pending = 1;
  return ncclInProgress;
}

static int knows(ncclComm_t comm, const char* kind, const char* at, size_t size) {
  for (int i = 0; i < comm->registered; i++)
    if (!strcmp(comm->known[i].kind, kind) && at >= comm->known[i].at && at + size <= comm->known[i].at + comm->known[i].size)
      return 1;
  return 0;
}

static ncclResult_t remember(ncclComm_t comm, const char* kind, void* at, size_t size) {
  if (comm->registered == LEN(comm->known)) return refuse(ncclInternalError, "this fake registers %d buffers", LEN(comm->known));
  comm->known[comm->registered].kind = kind, comm->known[comm->registered].at = at;
  comm->known[comm->registered++].size = size;
  return ncclSuccess;
}

static ncclResult_t collective(int function, const void* send, void* recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, int root, ncclComm_t comm, const ncclCollConfig_t* config) {
  int row, n = comm->size, mine = comm->rank == root;
  CHECK(ready(comm));
  if (type < 0 || type >= LEN(typeNames)) return refuse(ncclInvalidArgument, "%s : invalid type %d", functionNames[function], type);
  if (op < 0 || op >= ncclNumOps) return refuse(ncclInvalidArgument, "%s : invalid reduction operation %d", functionNames[function], op);
  if (root < 0 || root >= n)
    return refuse(ncclInvalidArgument, "%s : invalid root %d (root should be in the 0..%d range)", functionNames[function], root, n);
  int size = typeSizes[type];
  size_t bytes = count * size;
  if (bytes * n > INT_MAX) return refuse(ncclInvalidArgument, "%s : this fake takes less than 2 GiB in all", functionNames[function]);
  const char* needs = getenv("FAKE_NCCL_NEEDS");
  if (needs && count > 1 && !(knows(comm, needs, send, bytes) && knows(comm, needs, recv, bytes)))
    return refuse(ncclInternalError, "a buffer is not %s", needs);
  CHECK(choose(comm, function, bytes, type, config, &row));
  calls++;
  if (struck("FAKE_NCCL_ERROR_AT")) return refuse(setting("FAKE_NCCL_ERROR", 1), "injected");
  if (injected(comm)) return done(comm);
  if (row >= 0) logTuned(comm, function, count, size, row);

  int sendsAll = function == ReduceScatter || function == AlltoAll || (function == Scatter && mine);
  int hasSend = (function != Broadcast && function != Scatter) || mine;
  char* input = malloc(bytes * n + 1); /* send and recv may overlap */
  char* blocks = malloc(bytes * n + 1);
  size_t received = count;
  if (hasSend) memcpy(input, send, sendsAll ? bytes * n : bytes);
  switch (function) {
    case AllReduce:
      MPI_Allgather(input, bytes, MPI_BYTE, blocks, bytes, MPI_BYTE, comm->mpi);
      reduceBlocks(recv, blocks, n, count, type, op);
      break;
    case ReduceScatter:
      MPI_Alltoall(input, bytes, MPI_BYTE, blocks, bytes, MPI_BYTE, comm->mpi);
      reduceBlocks(recv, blocks, n, count, type, op);
      break;
    case Reduce:
      MPI_Gather(input, bytes, MPI_BYTE, blocks, bytes, MPI_BYTE, root, comm->mpi);
      if (mine) reduceBlocks(recv, blocks, n, count, type, op);
      break;
    case AllGather:
      MPI_Allgather(input, bytes, MPI_BYTE, blocks, bytes, MPI_BYTE, comm->mpi);
      memcpy(recv, blocks, bytes * n);
      received = count * n;
      break;
    case AlltoAll:
      MPI_Alltoall(input, bytes, MPI_BYTE, blocks, bytes, MPI_BYTE, comm->mpi);
      memcpy(recv, blocks, bytes * n);
      received = count * n;
      break;
    case Broadcast:
      MPI_Bcast(input, bytes, MPI_BYTE, root, comm->mpi);
      memcpy(recv, input, bytes);
      break;
    case Gather:
      MPI_Gather(input, bytes, MPI_BYTE, blocks, bytes, MPI_BYTE, root, comm->mpi);
      if (mine) memcpy(recv, blocks, bytes * n);
      received = count * n;
      break;
    case Scatter:
      MPI_Scatter(input, bytes, MPI_BYTE, blocks, bytes, MPI_BYTE, root, comm->mpi);
      memcpy(recv, blocks, bytes);
      break;
  }
  if ((function != Reduce && function != Gather) || mine) spoil(comm, recv, received, size);
  failLate(comm);
  free(input);
  free(blocks);
  return done(comm);
}

/* Plain and configured form of one call: PARAMETERS, then what collective() takes of them. */
#ifdef OLD
#define CONFIGURED(NAME, PARAMETERS, ...)
#else
#define CONFIGURED(NAME, PARAMETERS, ...)                                                              \
  ncclResult_t nccl##NAME##Config(PARAMETERS, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) { \
    (void)stream;                                                                                      \
    return collective(NAME, send, recv, count, type, __VA_ARGS__, comm, config);                       \
  }
#endif
#define UNPACK(...) __VA_ARGS__
#define CALL(NAME, PARAMETERS, ...)                                                                    \
  ncclResult_t nccl##NAME(UNPACK PARAMETERS, ncclComm_t comm, cudaStream_t stream) {                   \
    (void)stream;                                                                                      \
    return collective(NAME, send, recv, count, type, __VA_ARGS__, comm, NULL);                         \
  }                                                                                                    \
  CONFIGURED(NAME, UNPACK PARAMETERS, __VA_ARGS__)
#define BUFFERS const void *send, void *recv, size_t count, ncclDataType_t type

CALL(AllReduce, (BUFFERS, ncclRedOp_t op), op, 0)
CALL(AllGather, (BUFFERS), ncclSum, 0)
CALL(ReduceScatter, (BUFFERS, ncclRedOp_t op), op, 0)
CALL(Broadcast, (BUFFERS, int root), ncclSum, root)
CALL(Reduce, (BUFFERS, ncclRedOp_t op, int root), op, root)
#ifndef OLD /* since 2.28 */
CALL(AlltoAll, (BUFFERS), ncclSum, 0)
CALL(Gather, (BUFFERS, int root), ncclSum, root)
CALL(Scatter, (BUFFERS, int root), ncclSum, root)
#endif

/* ---- groups, sends and receives ---- */

static struct { int sends, size; void* buffer; size_t count; int peer; ncclComm_t comm; } queue[4096];
static int depth, queued;

static ncclResult_t runQueue(void) {
  if (!queued) return ncclSuccess;
  int n = queued, received = -1;
  ncclComm_t comm = queue[0].comm;
  queued = 0;
  calls++;
  if (injected(comm)) return done(comm);
  MPI_Request* requests = malloc(n * sizeof *requests);
  char** copies = calloc(n, sizeof *copies);
  for (int i = 0; i < n; i++) {
    size_t bytes = queue[i].count * queue[i].size;
    copies[i] = malloc(bytes + 1); /* a rank may send from the buffer that it receives into */
    if (queue[i].sends) memcpy(copies[i], queue[i].buffer, bytes);
    if (queue[i].sends) MPI_Isend(copies[i], bytes, MPI_BYTE, queue[i].peer, 0, queue[i].comm->mpi, &requests[i]);
    else MPI_Irecv(copies[i], bytes, MPI_BYTE, queue[i].peer, 0, queue[i].comm->mpi, &requests[i]), received = i;
  }
  MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
  for (int i = 0; i < n; i++) {
    if (!queue[i].sends) memcpy(queue[i].buffer, copies[i], queue[i].count * queue[i].size);
    free(copies[i]);
  }
  if (received >= 0) spoil(comm, queue[received].buffer, queue[received].count, queue[received].size);
  free(copies);
  free(requests);
  return done(comm);
}

static ncclResult_t enqueue(int sends, void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm) {
  CHECK(ready(comm));
  if (type < 0 || type >= LEN(typeNames)) return refuse(ncclInvalidArgument, "Send/Recv : invalid type %d", type);
  if (peer < 0 || peer >= comm->size)
    return refuse(ncclInvalidArgument, "Send/Recv : invalid peer %d (peer should be in the 0..%d range)", peer, comm->size);
  if (queued == LEN(queue)) return refuse(ncclInternalError, "this fake takes %d sends and receives a group", LEN(queue));
  queue[queued].sends = sends, queue[queued].size = typeSizes[type], queue[queued].buffer = buffer;
  queue[queued].count = count, queue[queued].peer = peer, queue[queued++].comm = comm;
  return depth ? ncclSuccess : runQueue();
}

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  (void)stream;
  return enqueue(1, (void*)send, count, type, peer, comm);
}

ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  (void)stream;
  return enqueue(0, recv, count, type, peer, comm);
}

ncclResult_t ncclGroupStart(void) {
  depth++;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
  if (!depth) return refuse(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
  return --depth ? ncclSuccess : runQueue();
}

/* ---- communicators ---- */

ncclResult_t ncclGetVersion(int* version) {
  *version = VERSION;
  return ncclSuccess;
}

/* Who made it, by rank in MPI_COMM_WORLD, and its number there: where the ranks of a communicator meet. */
struct meeting { int creator, number; };

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static int made;
  if (setting("FAKE_NCCL_ID_ERROR", 0)) return refuse(ncclSystemError, "no socket interface found");
  struct meeting meeting = {0, ++made};
  int up;
  MPI_Initialized(&up);
  if (up) MPI_Comm_rank(MPI_COMM_WORLD, &meeting.creator);
  memset(id, 0, sizeof *id);
  memcpy(id, &meeting, sizeof meeting);
  return ncclSuccess;
}

static MPI_Comm meet(struct meeting meeting, int n, int rank) {
  int* members = malloc(n * sizeof *members);
  int world, tag = meeting.number % 30000, me;
  MPI_Comm comm;
  MPI_Group all, group;
  MPI_Comm_rank(MPI_COMM_WORLD, &me);
  if (me == meeting.creator) {
    members[rank] = me;
    for (int i = 1; i < n; i++) {
      MPI_Status status;
      MPI_Recv(&world, 1, MPI_INT, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &status); /* the rank in the communicator */
      members[world] = status.MPI_SOURCE;
    }
    for (int i = 0; i < n; i++)
      if (members[i] != me) MPI_Send(members, n, MPI_INT, members[i], tag, MPI_COMM_WORLD);
  } else {
    MPI_Send(&rank, 1, MPI_INT, meeting.creator, tag, MPI_COMM_WORLD);
    MPI_Recv(members, n, MPI_INT, meeting.creator, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  MPI_Comm_group(MPI_COMM_WORLD, &all);
  MPI_Group_incl(all, n, members, &group);
  MPI_Comm_create_group(MPI_COMM_WORLD, group, tag, &comm);
  MPI_Group_free(&group);
  MPI_Group_free(&all);
  free(members);
  return comm;
}

static ncclResult_t initRank(ncclComm_t* comm, int n, ncclUniqueId id, int rank, int nonblocking) {
  struct meeting meeting;
  int up;
  MPI_Initialized(&up);
  if (!up) return refuse(ncclSystemError, "this fake needs MPI to be initialised");
  if (n < 1 || rank < 0 || rank >= n) return refuse(ncclInvalidArgument, "Invalid rank requested : %d/%d", rank, n);
  if (n == setting("FAKE_NCCL_INIT_ERROR", 0)) return refuse(ncclSystemError, "no communicator of %d ranks", n);
  const char *algo = getenv("NCCL_ALGO"), *proto = getenv("NCCL_PROTO"), *blocking = getenv("NCCL_COMM_BLOCKING");
  if (blocking) nonblocking = !strcmp(blocking, "0");
  ncclComm_t made = calloc(1, sizeof *made);
  made->rank = rank, made->size = n, made->nonblocking = made->pending = nonblocking;
  for (int function = 0; function < Functions; function++) made->allowed[function] = ALL;
  memcpy(&meeting, &id, sizeof meeting);
  made->mpi = meet(meeting, n, rank); /* even where the settings are refused, as all ranks do */
  if (n > 1) {
    ncclResult_t result = ncclSuccess;
    if (algo) result = restrictRows(algo, algorithmTokens, LEN(algorithmTokens), 0, made->allowed);
    if (proto && !result) result = restrictRows(proto, protocolNames, LEN(protocolNames), 1, made->allowed);
    if (result) {
      MPI_Comm_free(&made->mpi);
      free(made);
      return result;
    }
    snprintf(made->algo, sizeof made->algo, "%s", algo ? algo : "");
    snprintf(made->proto, sizeof made->proto, "%s", proto ? proto : "");
  }
  *comm = made;
  return nonblocking ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int n, ncclUniqueId id, int rank) {
  return initRank(comm, n, id, rank, 0);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int n, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config && config->magic != NCCL_API_MAGIC)
    return refuse(ncclInvalidArgument, "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
  return initRank(comm, n, id, rank, config && config->blocking == 0);
}

/* What CuPy links to as well. */
ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int devices, const int* list) {
  (void)comms, (void)devices, (void)list;
  return refuse(ncclInvalidUsage, "this fake has one device a process");
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part, ncclConfig_t* config) {
  MPI_Comm mpi;
  (void)config;
  MPI_Comm_split(comm->mpi, color == NCCL_SPLIT_NOCOLOR ? MPI_UNDEFINED : color, key, &mpi);
  *part = NULL;
  if (mpi == MPI_COMM_NULL) return ncclSuccess;
  *part = malloc(sizeof **part);
  **part = *comm; /* its choices too */
  (*part)->mpi = mpi;
  MPI_Comm_rank(mpi, &(*part)->rank);
  MPI_Comm_size(mpi, &(*part)->size);
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  (void)comm;
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  alive(comm);
  MPI_Comm_free(&comm->mpi);
  comm->over = 1;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) { /* not collective, and it ends what hangs */
  alive(comm);
  stuck = failed = 0;
  comm->over = 1;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->size;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  (void)comm;
  *device = 0;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  alive(comm);
  *error = failed ? ncclSystemError : comm->pending ? ncclInProgress : ncclSuccess;
  comm->pending = 0;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  static const char* const words[] = {"no error", "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
    "unhandled system error (run with NCCL_DEBUG=INFO for details)",
    "internal error - please report this issue to the NCCL developers",
    "invalid argument (run with NCCL_DEBUG=WARN for details)", "invalid usage (run with NCCL_DEBUG=WARN for details)",
    "remote process exited or there was a network error", "NCCL operation in progress"};
  return result >= 0 && result < LEN(words) ? words[result] : "unknown result code";
}

const char* ncclGetLastError(ncclComm_t comm) {
  (void)comm;
  return lastError;
}

/* ---- memory ---- */

ncclResult_t ncclMemAlloc(void** pointer, size_t size) {
  return posix_memalign(pointer, 4096, size ? size : 1) ? ncclSystemError : ncclSuccess;
}

ncclResult_t ncclMemFree(void* pointer) {
  free(pointer);
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buffer, size_t size, void** handle) {
  *handle = malloc(1);
  return remember(comm, "registered", buffer, size);
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  (void)comm;
  free(handle);
  return ncclSuccess;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, size_t size, ncclWindow_t* window, int flags) {
  unsigned long mine[2] = {size, ~size}, most[2];
  (void)flags;
  if ((uintptr_t)buffer % NCCL_WIN_REQUIRED_ALIGNMENT)
    return refuse(ncclInvalidArgument, "window address %p must be aligned to %d", buffer, NCCL_WIN_REQUIRED_ALIGNMENT);
  MPI_Allreduce(mine, most, 2, MPI_UNSIGNED_LONG, MPI_MAX, comm->mpi);
  if (most[0] != ~most[1]) return refuse(ncclInvalidArgument, "window of %zu bytes, on another rank of %lu", size, most[0]);
  *window = malloc(1);
  return remember(comm, "symmetric", buffer, size);
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  (void)comm;
  free(window);
  return ncclSuccess;
}

/* ---- for the tests ---- */

/* Whether work on any stream is still under way: what a device event would tell. */
int fake_nccl_busy(void* stream) {
  (void)stream;
  return stuck;
}
