/* libhvdcomm, the workers' library of hvdlaunch: collectives, progress and checkpoints.
 *
 * A process has one communicator, from hvd_init to hvd_finalize. Under hvdlaunch its ranks are the
 * job's; without hvdlaunch the process is rank 0 of 1 and everything works the same.
 *
 * Every function returns an hvd_result and none ends the process; hvd_last_error() gives the
 * sentence that belongs to the calling thread's last failure. All ranks must call the collectives
 * in the same order with the same arguments: this is checked before data moves, and a difference is
 * an error on every rank that names both sides. When a rank is lost, every collective ends within
 * milliseconds with an error that names it; from then on the communicator refuses all work but
 * hvd_checkpoint_save, hvd_abort and hvd_finalize, and the process should end so that hvdlaunch can
 * relaunch the job.
 *
 * Collectives and checkpoints may be called from any one thread at a time; hvd_heartbeat from any
 * thread at any time. After fork() the child may call nothing but hvd_error_string and
 * hvd_last_error.
 */
#ifndef HVD_COMM_H
#define HVD_COMM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HVD_API __attribute__((visibility("default")))

typedef enum hvd_result {
  HVD_OK = 0,
  HVD_INVALID_ARGUMENT = 1,  /* refused before anything was done */
  HVD_NOT_INITIALIZED = 2,   /* hvd_init was not called, failed, or hvd_finalize was called */
  HVD_FORKED = 3,            /* called in a child made by fork() */
  HVD_PEER_FAILED = 4,       /* a rank is gone; the text names it */
  HVD_MISMATCH = 5,          /* ranks called different things; the text names both */
  HVD_TIMED_OUT = 6,         /* a limit passed; the text names who was waited for */
  HVD_AGENT_LOST = 7,        /* the agent of this host ended or broke the protocol */
  HVD_CHECKPOINT_FAILED = 8, /* a checkpoint could not be saved or loaded; the text says why */
  HVD_NO_CHECKPOINT = 9,     /* there is none to load */
  HVD_UNSUPPORTED = 10,      /* this build or backend cannot do it */
  HVD_OUT_OF_MEMORY = 11,
  HVD_SYSTEM_ERROR = 12 /* a system call failed; the text says which */
} hvd_result;

/* Element types. A plain integer, so that a wrong one can be refused. */
typedef int32_t hvd_dtype;
enum { HVD_FLOAT32 = 0, HVD_FLOAT64 = 1, HVD_INT32 = 2, HVD_INT64 = 3, HVD_UINT8 = 4 };

/* What a result means in general; never NULL. */
HVD_API const char* hvd_error_string(hvd_result result);
/* The calling thread's last failure as a sentence, "" if none; lives until its next hvd call. */
HVD_API const char* hvd_last_error(void);

/* Joins the job: meets the host's agent (HVD_AGENT_SOCKET) and all other ranks, which must also
 * call it, within 60 s (HVD_INIT_TIMEOUT). With HVD_BACKEND=nccl buffers on a GPU may be reduced.
 * Environment read here: HVD_AGENT_SOCKET, HVD_RANK, HVD_ATTEMPT, HVD_CHECKPOINT_DIR,
 * HVD_RESUME_FROM, HVD_RESUME_STEP, HVD_JOB_ID, HVD_TIMEOUT (limit of each collective; none by
 * default), HVD_INIT_TIMEOUT, HVD_BACKEND. */
HVD_API hvd_result hvd_init(void);

/* Ends the communicator: waits for a save under way, gives data that others still need up to 5 s to
 * leave, waits for nobody else. A
 * process that ends with 0 without having called it counts as failed. */
HVD_API hvd_result hvd_finalize(void);

HVD_API hvd_result hvd_rank(uint32_t* rank);
HVD_API hvd_result hvd_size(uint32_t* size);
HVD_API hvd_result hvd_local_rank(uint32_t* local_rank);
HVD_API hvd_result hvd_local_size(uint32_t* local_size);

/* out[i] = the sum over ranks of in[i]. `in` may be `out`; otherwise they must not overlap. The
 * bits depend on the inputs and the number of ranks only. A count of 0 is legal everywhere. */
HVD_API hvd_result hvd_allreduce(const void* in, void* out, uint64_t count, hvd_dtype dtype);

/* The shards [first, first + here) of `total` that this rank holds in hvd_allreduce_shards. */
HVD_API hvd_result hvd_shard_range(uint32_t total, uint32_t* first, uint32_t* here);

/* out[i] = the sum over all `total_shards` shards of shard[i], always added in the same order,
 * however many ranks hold them: the bits are the same at every size. This rank's shards, those of
 * hvd_shard_range, stand one after the other at `shards`, each of `count` elements; `shards_here`
 * is their number, checked. `out` holds `count` elements and must not overlap `shards`. */
HVD_API hvd_result hvd_allreduce_shards(const void* shards, uint32_t shards_here,
                                        uint32_t total_shards, void* out, uint64_t count,
                                        hvd_dtype dtype);

/* Gives every rank the root's buffer. */
HVD_API hvd_result hvd_broadcast(void* buffer, uint64_t count, hvd_dtype dtype, uint32_t root);

/* Returns when all ranks have called it. */
HVD_API hvd_result hvd_barrier(void);

/* Tells that this rank is alive and works on `step`. Two stores to memory, no system call. */
HVD_API hvd_result hvd_heartbeat(uint64_t step);

/* A named array of a checkpoint. */
typedef struct hvd_array {
  const char* name; /* UTF-8, not empty, each once */
  void* data;
  const uint64_t* shape; /* `dims` extents; NULL with dims 0 is a scalar */
  uint32_t dims;
  hvd_dtype dtype;
  int own; /* 0: the same on all ranks; else this rank's own, and needs the same number of ranks */
} hvd_array;

/* Saves the state after `step` steps under HVD_CHECKPOINT_DIR. All ranks call it. Returns when the
 * checkpoint is committed whole, on disk, on all ranks, or with the reason why it is not; then the
 * communicator is still of use. `note` (UTF-8, may be NULL) is the program's own words, such as the
 * data position; rank 0's goes into the manifest, each rank gets its own back.
 *
 * After HVD_PEER_FAILED this is the one call that still works, for the state of the last finished
 * step, within the grace that ranks have after a failure (hvdlaunch --failure-grace). It is
 * committed when it is the same on all ranks, by as few as one of those that are left. The process
 * gets TERM at the failure, and must not end of it before it has called this. */
HVD_API hvd_result hvd_checkpoint_save(uint64_t step, const hvd_array* arrays, size_t count,
                                       const char* note);

/* As hvd_checkpoint_save, but returns as soon as the arrays are copied: a thread writes the copy,
 * and the commit follows. All ranks call it. Memory for one copy is kept until the process ends.
 * One save is under way at a time: this, hvd_checkpoint_save and hvd_finalize wait for it first,
 * and when it failed they return its failure and save nothing; after that they may be called again.
 */
HVD_API hvd_result hvd_checkpoint_save_async(uint64_t step, const hvd_array* arrays, size_t count,
                                             const char* note);

/* Returns when the save under way is committed, or with the reason why it is not; at once if there
 * is none. All ranks call it. */
HVD_API hvd_result hvd_checkpoint_wait(void);

/* Keeps the state after `step` steps in memory that this host's agent holds too: when a process of
 * the job ends and its hosts' agents do not, all ranks go on from it, without a disk. It takes the
 * place of no save: with a host its memory is lost, and the job goes on from the newest checkpoint
 * under HVD_CHECKPOINT_DIR, which there must be. All ranks call it. Returns as soon as the arrays
 * are copied. It first waits until all ranks have the one before, and when one has not, it returns
 * that failure and keeps nothing; after that it may be called again. Takes memory for two copies,
 * which is free again when the job ends. A process without hvdlaunch keeps nothing. */
HVD_API hvd_result hvd_checkpoint_keep(uint64_t step, const hvd_array* arrays, size_t count,
                                       const char* note);

/* 1 in *available if there is a checkpoint to go on from (HVD_RESUME_FROM, which is the word
 * memory where it is a state that was kept), else 0; its step in *step, unless NULL. */
HVD_API hvd_result hvd_checkpoint_available(int* available, uint64_t* step);

/* Fills the named arrays from the checkpoint at HVD_RESUME_FROM, after the digest of the state was
 * found to be the same on all ranks. All ranks call it. Each array must be there with the same
 * dtype and number of bytes. The note, ended by a 0, goes into `note` (may be NULL) of `note_size`
 * bytes; the step into *step (may be NULL). On failure nothing of the caller's is changed. */
HVD_API hvd_result hvd_checkpoint_load(const hvd_array* arrays, size_t count, char* note,
                                       size_t note_size, uint64_t* step);

/* Tells the job that this rank gives up, with the exit code it will end with (1..255) and why. It
 * returns; the caller then ends the process with that code. */
HVD_API hvd_result hvd_abort(int code, const char* reason);

#ifdef __cplusplus
}
#endif

#endif /* HVD_COMM_H */
