# `cmake --install`: the program, the public headers, the static libraries, and what
# find_package(coda) reads. Users link coda::coda; the other targets are its parts.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(CODA_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/coda)

# coda_install_library(target scope): a part of coda::coda, found as coda::<folder>.
function(coda_install_library target scope)
  string(REGEX REPLACE "^coda_" "" exported ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${exported})
  target_include_directories(${target} ${scope} $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${target} ${scope} cxx_std_20)
  install(TARGETS ${target} EXPORT coda_targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()

# coda_install(): coda::coda, headers, package files. Called once every library is there.
function(coda_install)
  add_library(coda_all INTERFACE)
  target_link_libraries(coda_all INTERFACE coda_train coda_backend_reference coda_backend_cpu
                                           coda_backend_cuda)
  set_target_properties(coda_all PROPERTIES EXPORT_NAME coda)
  install(TARGETS coda_all EXPORT coda_targets)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/coda DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
          FILES_MATCHING PATTERN "*.h")
  install(EXPORT coda_targets NAMESPACE coda:: DESTINATION ${CODA_PACKAGE_DIR})
  configure_package_config_file(
    ${PROJECT_SOURCE_DIR}/cmake/coda-config.cmake.in ${PROJECT_BINARY_DIR}/coda-config.cmake
    INSTALL_DESTINATION ${CODA_PACKAGE_DIR} NO_SET_AND_CHECK_MACRO)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/coda-config-version.cmake
                                   COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/coda-config.cmake
                ${PROJECT_BINARY_DIR}/coda-config-version.cmake
                ${PROJECT_SOURCE_DIR}/cmake/FindDnnl.cmake
          DESTINATION ${CODA_PACKAGE_DIR})
endfunction()
