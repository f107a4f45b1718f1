/* What the real nccl.h says of the structures and numbers that bindings pass: name value, one a line. */
#include <nccl.h>
#include <stddef.h>
#include <stdio.h>

#define SHOW(name, value) printf("%s %ld\n", name, (long)(value))
#define CONFIG(field) SHOW("config." #field, offsetof(ncclConfig_t, field))
#define CALL(field) SHOW("call." #field, offsetof(ncclCollConfig_t, field))
#define NUMBER(name) SHOW(#name, name)

int main(void) {
  SHOW("config", sizeof(ncclConfig_t));
  SHOW("call", sizeof(ncclCollConfig_t));
  SHOW("id", sizeof(ncclUniqueId));
  SHOW("version", NCCL_VERSION_CODE);
  CONFIG(magic); CONFIG(version); CONFIG(blocking); CONFIG(cgaClusterSize); CONFIG(minCTAs); CONFIG(maxCTAs);
  CONFIG(netName); CONFIG(splitShare); CONFIG(collnetEnable); CONFIG(CTAPolicy); CONFIG(nvlsHostMode);
  CALL(magic); CALL(version); CALL(ext); CALL(minCTAs); CALL(maxCTAs); CALL(nvlsCTAs); CALL(cgaClusterSize);
  CALL(algSelection); CALL(forceAlgSelection); CALL(CTAPolicy); CALL(userProfilerTag); CALL(launchCompletionEvent);
  NUMBER(ncclSuccess); NUMBER(ncclInvalidArgument); NUMBER(ncclInvalidUsage); NUMBER(ncclInProgress);
  NUMBER(ncclInt8); NUMBER(ncclUint8); NUMBER(ncclInt32); NUMBER(ncclUint32); NUMBER(ncclInt64); NUMBER(ncclUint64);
  NUMBER(ncclFloat16); NUMBER(ncclFloat32); NUMBER(ncclFloat64); NUMBER(ncclBfloat16);
  NUMBER(ncclSum); NUMBER(ncclProd); NUMBER(ncclMax); NUMBER(ncclMin); NUMBER(ncclAvg);
  NUMBER(NCCL_WIN_COLL_SYMMETRIC);
  return 0;
}
