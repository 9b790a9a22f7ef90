# headq_embed_text(TARGET NAMESPACE NAME FILE [NAME FILE]...)
#
# Compiles text files into TARGET: for each NAME a `const std::string_view NAME` in NAMESPACE, which
# the code that reads it declares extern. FILE is a full path, or "-" for an empty text. A file that
# changes is compiled again.
function(headq_embed_text target namespace)
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/${target}_text.cpp)
  set(pairs ${ARGN})
  set(files "")
  list(LENGTH pairs n)
  math(EXPR last "${n} - 1")
  foreach(i RANGE 1 ${last} 2)
    list(GET pairs ${i} file)
    if(NOT file STREQUAL "-")
      list(APPEND files ${file})
    endif()
  endforeach()
  add_custom_command(
    OUTPUT ${generated}
    COMMAND ${CMAKE_COMMAND} "-DOUTPUT=${generated}" "-DNAMESPACE=${namespace}" "-DPAIRS=${pairs}"
            -P ${PROJECT_SOURCE_DIR}/cmake/embed_text_script.cmake
    DEPENDS ${files} ${PROJECT_SOURCE_DIR}/cmake/embed_text_script.cmake
    COMMENT "Embedding the text files of ${target}"
    VERBATIM)
  target_sources(${target} PRIVATE ${generated})
endfunction()
