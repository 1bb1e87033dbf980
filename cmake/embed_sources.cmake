# cmake -DOUTPUT=x.cpp -DSOURCES="a.cuh;b.cuh" -P embed_sources.cmake
# Writes a C++ file with every source as a string (see src/backend/cuda/device_sources.h).
set(text "#include \"backend/cuda/device_sources.h\"\n\nnamespace coda::cuda {\n")
set(rows "")
foreach(source ${SOURCES})
  get_filename_component(name ${source} NAME)
  # As numbers, since a string literal has a length limit and a list would split at semicolons.
  file(READ ${source} bytes HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(MAKE_C_IDENTIFIER ${name} identifier)
  string(APPEND text "static const unsigned char ${identifier}[] = {${bytes}0};\n")
  string(APPEND rows "    {\"${name}\", reinterpret_cast<const char*>(${identifier})},\n")
endforeach()
string(APPEND text "const DeviceSource kDeviceSources[] = {\n${rows}    {nullptr, nullptr}};\n")
string(APPEND text "}  // namespace coda::cuda\n")
file(WRITE ${OUTPUT} "${text}")
