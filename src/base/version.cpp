#include "coda/version.h"

namespace coda {

std::string_view version() { return CODA_VERSION; }

}  // namespace coda
