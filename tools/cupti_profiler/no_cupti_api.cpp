// CuptiApi in a build that found no cupti.h.
#include "amanda/error.h"
#include "cupti_profiler/cupti_api.h"

namespace amanda::tools {

CuptiApi& CuptiApi::load(const std::vector<std::string>&) {
  throw Error(
      "[cupti] this build has no CUPTI: cupti.h was not found; configure with -DAMANDA_CUPTI_INCLUDE_DIR=<folder of "
      "cupti.h>");
}

}  // namespace amanda::tools
