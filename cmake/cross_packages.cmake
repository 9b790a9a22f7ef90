# fmt and GoogleTest when cross-compiling: the distribution's packages hold libraries for this machine
# alone, so fmt is used as headers and GoogleTest is built from the sources that its package brings.
# Eigen is headers anyway.

find_path(HEADQ_FMT_INCLUDE fmt/format.h REQUIRED)
# A folder with fmt alone: its neighbours are headers of this machine's own C library.
set(headq_cross_include ${CMAKE_BINARY_DIR}/cross-include)
file(MAKE_DIRECTORY ${headq_cross_include})
file(CREATE_LINK ${HEADQ_FMT_INCLUDE}/fmt ${headq_cross_include}/fmt SYMBOLIC)
add_library(fmt::fmt INTERFACE IMPORTED)
target_include_directories(fmt::fmt INTERFACE ${headq_cross_include})
target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY)

if(HEADQ_BUILD_TESTS)
  set(HEADQ_GTEST_SOURCE /usr/src/googletest CACHE PATH "sources of GoogleTest")
  set(INSTALL_GTEST OFF)
  add_subdirectory(${HEADQ_GTEST_SOURCE} ${CMAKE_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
endif()
