// What stands in for functions that libssh.a calls.
//
// GSSAPI: there is no static Kerberos library, and the program must start on hosts without the
// shared one, so these answer "unavailable"; hosts that want GSSAPI are reached through the OpenSSH
// client.
//
// libssh is started here, so that whoever uses it links these too.
#include <libssh/libssh.h>

#include <cstdint>
#include <mutex>

#include "launcher/ssh_link.h"

namespace hvd {

void start_libssh() {
  static std::once_flag once;
  std::call_once(once, [] { ssh_init(); });
}

}  // namespace hvd

#pragma GCC visibility push(hidden)
extern "C" {

extern const void* const GSS_C_NT_HOSTBASED_SERVICE;
extern const void* const GSS_C_NT_USER_NAME;
const void* const GSS_C_NT_HOSTBASED_SERVICE = nullptr;
const void* const GSS_C_NT_USER_NAME = nullptr;

// All of them take the minor status first and return the major one, here GSS_S_UNAVAILABLE. What
// else the caller passes stays untouched, as after any failed call.
#define HVD_GSS_UNAVAILABLE(name)  \
  uint32_t name(uint32_t* minor);  \
  uint32_t name(uint32_t* minor) { \
    *minor = 0;                    \
    return 16u << 16;              \
  }

HVD_GSS_UNAVAILABLE(gss_accept_sec_context)
HVD_GSS_UNAVAILABLE(gss_acquire_cred)
HVD_GSS_UNAVAILABLE(gss_add_oid_set_member)
HVD_GSS_UNAVAILABLE(gss_create_empty_oid_set)
HVD_GSS_UNAVAILABLE(gss_display_name)
HVD_GSS_UNAVAILABLE(gss_display_status)
HVD_GSS_UNAVAILABLE(gss_get_mic)
HVD_GSS_UNAVAILABLE(gss_import_name)
HVD_GSS_UNAVAILABLE(gss_indicate_mechs)
HVD_GSS_UNAVAILABLE(gss_init_sec_context)
HVD_GSS_UNAVAILABLE(gss_inquire_cred)
HVD_GSS_UNAVAILABLE(gss_inquire_cred_by_mech)
HVD_GSS_UNAVAILABLE(gss_release_buffer)
HVD_GSS_UNAVAILABLE(gss_release_cred)
HVD_GSS_UNAVAILABLE(gss_release_name)
HVD_GSS_UNAVAILABLE(gss_release_oid_set)
HVD_GSS_UNAVAILABLE(gss_test_oid_set_member)
HVD_GSS_UNAVAILABLE(gss_verify_mic)

}  // extern "C"
#pragma GCC visibility pop
