/* The binary interface between libhvdcomm.so and a backend in a shared object of its own, which is
 * loaded only when asked for (HVD_BACKEND) and alone links the vendor's libraries. Plain C types
 * only: the two sides share no C++ library. */
#ifndef HVD_BACKEND_PLUGIN_H
#define HVD_BACKEND_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HVD_PLUGIN_VERSION 1
#define HVD_PLUGIN_ID_BYTES 128
#define HVD_PLUGIN_TEXT 512

/* The host's side: whether a wait must end because a rank is gone. */
typedef struct hvd_plugin_host {
  void* context;
  int (*stopped)(void* context);
} hvd_plugin_host;

typedef struct hvd_plugin_member {
  uint32_t rank, size, local_rank;
  unsigned char id[HVD_PLUGIN_ID_BYTES]; /* rank 0's, the same on all ranks */
  uint64_t init_limit_ms;
  uint64_t limit_ms; /* of each collective; 0: none */
} hvd_plugin_member;

/* Functions return 0, or nonzero with a sentence in `text`, of HVD_PLUGIN_TEXT bytes. `dtype` is an
 * hvd_dtype. */
typedef struct hvd_plugin {
  uint32_t version;
  /* Nonzero if the buffer is in a device's memory. */
  int (*takes)(const void* buffer);
  int (*make_id)(unsigned char* id, char* text);
  int (*open)(const hvd_plugin_member* member, hvd_plugin_host host, void** instance, char* text);
  int (*allreduce)(void* instance, const void* in, void* out, uint64_t count, int dtype,
                   char* text);
  void (*close)(void* instance);
} hvd_plugin;

/* The one function that the shared object exports under this name. */
typedef const hvd_plugin* (*hvd_plugin_entry)(void);
#define HVD_PLUGIN_ENTRY "hvd_backend_plugin"

#ifdef __cplusplus
}
#endif

#endif /* HVD_BACKEND_PLUGIN_H */
