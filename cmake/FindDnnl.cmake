# Finds oneDNN 2.6 or later by its header and library, and defines the target Dnnl::dnnl.
#
# The package file that oneDNN installs is not used: on Debian it asks for OpenCL, which the CPU
# engine does not need. CODA_DNNL_ROOT names an installation to prefer over the system's: a folder
# with include/oneapi/dnnl/dnnl.hpp and, unless it is only compiled against, lib/libdnnl.so.

set(CODA_DNNL_ROOT "" CACHE PATH "oneDNN installation to prefer over the system's")

set(dnnl_search)
if(CODA_DNNL_ROOT)
  set(dnnl_search PATHS ${CODA_DNNL_ROOT} NO_DEFAULT_PATH)
endif()
find_path(Dnnl_INCLUDE_DIR oneapi/dnnl/dnnl.hpp ${dnnl_search} PATH_SUFFIXES include)
find_library(Dnnl_LIBRARY dnnl ${dnnl_search} PATH_SUFFIXES lib lib64)
mark_as_advanced(Dnnl_INCLUDE_DIR Dnnl_LIBRARY)

set(Dnnl_VERSION "")
if(Dnnl_INCLUDE_DIR)
  file(STRINGS ${Dnnl_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h dnnl_lines
       REGEX "define DNNL_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
  foreach(part MAJOR MINOR PATCH)
    if("${dnnl_lines}" MATCHES "DNNL_VERSION_${part} +([0-9]+)")
      list(APPEND Dnnl_VERSION ${CMAKE_MATCH_1})
    endif()
  endforeach()
  list(JOIN Dnnl_VERSION "." Dnnl_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  Dnnl
  REQUIRED_VARS Dnnl_LIBRARY Dnnl_INCLUDE_DIR
  VERSION_VAR Dnnl_VERSION
  REASON_FAILURE_MESSAGE "Install libdnnl-dev, or point CODA_DNNL_ROOT at an installation")

if(Dnnl_FOUND AND NOT TARGET Dnnl::dnnl)
  add_library(Dnnl::dnnl UNKNOWN IMPORTED)
  set_target_properties(Dnnl::dnnl PROPERTIES IMPORTED_LOCATION ${Dnnl_LIBRARY}
                                              INTERFACE_INCLUDE_DIRECTORIES ${Dnnl_INCLUDE_DIR})
endif()
