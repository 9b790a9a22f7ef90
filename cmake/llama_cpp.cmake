# Imported targets for the llama.cpp that HEADQ_LLAMA_CPP_DIR (sources) and HEADQ_LLAMA_CPP_BUILD
# (shared libraries) name: headq::ggml (with the internal backend header) and headq::llama.
if(NOT EXISTS ${HEADQ_LLAMA_CPP_DIR}/ggml/src/ggml-backend-impl.h)
  message(FATAL_ERROR "HEADQ_LLAMA_CPP_DIR=${HEADQ_LLAMA_CPP_DIR} is not a llama.cpp source tree")
endif()

foreach(lib ggml-base ggml llama)
  find_library(HEADQ_LIB_${lib} ${lib} PATHS ${HEADQ_LLAMA_CPP_BUILD}/bin NO_DEFAULT_PATH NO_CACHE)
  if(NOT HEADQ_LIB_${lib})
    message(FATAL_ERROR "lib${lib}.so is not in ${HEADQ_LLAMA_CPP_BUILD}/bin; build llama.cpp with "
                        "-DBUILD_SHARED_LIBS=ON or set HEADQ_LLAMA_CPP_BUILD")
  endif()
endforeach()

add_library(headq_ggml_external INTERFACE)
target_include_directories(headq_ggml_external SYSTEM INTERFACE ${HEADQ_LLAMA_CPP_DIR}/ggml/include
                                                                ${HEADQ_LLAMA_CPP_DIR}/ggml/src)
target_link_libraries(headq_ggml_external INTERFACE ${HEADQ_LIB_ggml} ${HEADQ_LIB_ggml-base})
add_library(headq::ggml ALIAS headq_ggml_external)

add_library(headq_llama_external INTERFACE)
target_include_directories(headq_llama_external SYSTEM INTERFACE ${HEADQ_LLAMA_CPP_DIR}/include)
target_link_libraries(headq_llama_external INTERFACE ${HEADQ_LIB_llama} headq::ggml)
add_library(headq::llama ALIAS headq_llama_external)

# The ggml version the plugin is built for.
file(STRINGS ${HEADQ_LLAMA_CPP_DIR}/ggml/CMakeLists.txt HEADQ_GGML_VERSION_LINES
     REGEX "set\\(GGML_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+\\)")
set(HEADQ_GGML_VERSION "")
foreach(line ${HEADQ_GGML_VERSION_LINES})
  string(REGEX MATCH "[0-9]+" number ${line})
  list(APPEND HEADQ_GGML_VERSION ${number})
endforeach()
list(JOIN HEADQ_GGML_VERSION "." HEADQ_GGML_VERSION)
