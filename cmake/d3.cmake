# The chart library D3 (Debian: node-d3), which pages of `headq diagnose` carry within them, with
# its licence. HEADQ_D3 and HEADQ_D3_LICENCE name the files; where CMake finds none they are "-" and
# the command says so when it is asked for such a page.
find_file(HEADQ_D3 d3.min.js PATHS /usr/share/nodejs/d3/dist NO_DEFAULT_PATH
          DOC "d3.min.js, version 5 or later, for HTML reports")
find_file(HEADQ_D3_LICENCE copyright PATHS /usr/share/doc/node-d3 NO_DEFAULT_PATH
          DOC "the licence text of HEADQ_D3")
if(HEADQ_D3 AND HEADQ_D3_LICENCE)
  file(READ ${HEADQ_D3} head LIMIT 200)
  if(NOT head MATCHES "d3js.org v([0-9]+)" OR CMAKE_MATCH_1 LESS 5)
    message(FATAL_ERROR "HEADQ_D3=${HEADQ_D3} is not D3 of version 5 or later")
  endif()
  set(d3_file ${HEADQ_D3})
  set(d3_licence_file ${HEADQ_D3_LICENCE})
else()
  message(STATUS "no HTML reports: d3.min.js and its licence not found (Debian: node-d3)")
  set(d3_file "-")
  set(d3_licence_file "-")
endif()
