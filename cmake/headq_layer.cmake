# headq_layer(NAME SOURCES... [DEPENDS layer...])
#
# One static library a layer, named headq_<NAME>. Layers may depend only on layers that stand to
# their left in docs/architecture.md; scripts/check-layers holds the includes to the same rule.
function(headq_layer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(headq_${name} STATIC ${ARG_SOURCES})
  target_include_directories(headq_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include
                                                  ${PROJECT_SOURCE_DIR}/src)
  foreach(dep ${ARG_DEPENDS})
    target_link_libraries(headq_${name} PUBLIC headq_${dep})
  endforeach()
endfunction()

# headq_test(NAME SOURCES... [LINK libs...] [LABELS labels...])
function(headq_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gtest GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  # Idle threads sleep instead of spinning, so that tests that run side by side do not starve each other.
  set(properties ENVIRONMENT "OMP_WAIT_POLICY=passive")
  if(ARG_LABELS)
    list(APPEND properties LABELS "${ARG_LABELS}")
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES ${properties})
endfunction()
