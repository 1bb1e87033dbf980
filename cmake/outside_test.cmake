# Run by ctest (see coda_outside_test). BUILD: coda's build folder; SOURCE: the outside project;
# GENERATOR, COMPILER: those of coda; FLAGS: for the compiler.
set(prefix ${BUILD}/outside/prefix)
set(project ${BUILD}/outside/build)
file(REMOVE_RECURSE ${BUILD}/outside)

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
  message("${text}")
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "exit code ${result} of: ${command}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${project} -G ${GENERATOR} -DCMAKE_PREFIX_PATH=${prefix}
    -DCMAKE_CXX_COMPILER=${COMPILER} "-DCMAKE_CXX_FLAGS=${FLAGS}")
run(${CMAKE_COMMAND} --build ${project})
run(${project}/tiny_model)
run(${prefix}/bin/coda info)
