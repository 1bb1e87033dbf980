# Helpers that turn a folder into a target. A folder without sources yet makes no target, so
# that the list in CMakeLists.txt can name the whole architecture.

# Paths inside the project are relative for ccache, so that every build folder and every checkout
# shares what it has compiled.
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
                                  CCACHE_NOHASHDIR=1 ${CCACHE})
endif()

add_library(coda_options INTERFACE)
target_compile_options(coda_options INTERFACE -Wall -Wextra -Werror)
target_include_directories(coda_options INTERFACE ${PROJECT_SOURCE_DIR}/include
                                                  ${PROJECT_SOURCE_DIR}/src)
if(CODA_SANITIZE)
  # -Og compiles the instrumented code in half the time of -O1 and -O2.
  target_compile_options(coda_options INTERFACE -Og -fsanitize=address,undefined
                                                -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(coda_options INTERFACE -fsanitize=address,undefined)
  # GCC's checks inserted by the sanitizers make this warning fire on code that is right.
  target_compile_options(coda_options INTERFACE
                         $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endif()

# coda_link_library(target name): a library without a package file of its own. Whoever uses an
# installed coda links it by name, wherever it lies there.
function(coda_link_library target name)
  string(TOUPPER ${name}_LIBRARY variable)
  find_library(${variable} ${name} REQUIRED)
  mark_as_advanced(${variable})
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:${${variable}}>
                                          $<INSTALL_INTERFACE:${name}>)
endfunction()

# coda_library(folder DEPENDS targets...): src/folder/*.cpp -> coda_folder ('/' becomes '_').
# A folder's own CMakeLists.txt, if any, is read afterwards and may add to the target.
function(coda_library folder)
  cmake_parse_arguments(ARG "" "" "DEPENDS" ${ARGN})
  string(REPLACE "/" "_" name coda_${folder})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${folder}/*.cpp)
  if(folder STREQUAL "nn")
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/nn/*.cpp)
  endif()
  if(sources)
    add_library(${name} STATIC ${sources})
    set(scope PUBLIC)
  else()
    add_library(${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_link_libraries(${name} ${scope} $<BUILD_INTERFACE:coda_options> ${ARG_DEPENDS})
  coda_install_library(${name} ${scope})
  if(EXISTS ${PROJECT_SOURCE_DIR}/src/${folder}/CMakeLists.txt)
    add_subdirectory(${PROJECT_SOURCE_DIR}/src/${folder})
  endif()
endfunction()

# coda_command(): src/cli/*.cpp -> the program `coda`, at the top of the build folder.
function(coda_command)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cli/*.cpp)
  if(EXISTS ${PROJECT_SOURCE_DIR}/src/cli/main.cpp)
    find_package(CLI11 REQUIRED)
    add_executable(coda ${sources})
    target_link_libraries(coda PRIVATE coda_train coda_backend_reference coda_backend_cpu
                                       coda_backend_cuda CLI11::CLI11)
    set_target_properties(coda PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
    install(TARGETS coda RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endfunction()

# coda_tests(folders...): tests/folder/**/*_test.cpp -> one test program coda_folder_tests, linked
# with everything, so that a test may use the reference backend as its oracle. CODA_SOURCE_DIR is
# the folder of the project.
function(coda_tests)
  foreach(folder ${ARGN})
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${folder}/*_test.cpp)
    if(sources)
      add_executable(coda_${folder}_tests ${sources})
      target_include_directories(coda_${folder}_tests PRIVATE ${PROJECT_SOURCE_DIR}/tests)
      target_compile_definitions(coda_${folder}_tests
                                 PRIVATE CODA_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
      target_link_libraries(coda_${folder}_tests PRIVATE coda_train coda_backend_reference
                            coda_backend_cpu coda_backend_cuda GTest::gtest GTest::gtest_main)
      add_test(NAME ${folder} COMMAND coda_${folder}_tests)
    endif()
  endforeach()
endfunction()

# coda_outside_test(): installs into the build folder, builds examples/outside_project against that
# with nothing but find_package(coda), and runs it. Sanitized libraries need a sanitized program.
function(coda_outside_test)
  set(flags)
  if(CODA_SANITIZE)
    set(flags "-DFLAGS=-fsanitize=address,undefined")
  endif()
  add_test(NAME outside_project
           COMMAND ${CMAKE_COMMAND} -DBUILD=${PROJECT_BINARY_DIR}
                   -DSOURCE=${PROJECT_SOURCE_DIR}/examples/outside_project
                   -DGENERATOR=${CMAKE_GENERATOR} -DCOMPILER=${CMAKE_CXX_COMPILER} ${flags}
                   -P ${PROJECT_SOURCE_DIR}/cmake/outside_test.cmake)
endfunction()

# coda_examples(): every examples/NN_name.cpp is a program of its own, built and run by the tests.
function(coda_examples)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/*.cpp)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    add_executable(example_${name} ${source})
    target_link_libraries(example_${name} PRIVATE coda_nn coda_backend_reference)
    add_test(NAME example_${name} COMMAND example_${name})
  endforeach()
endfunction()
