/* The client, see sockets.c. */
#include "contract.h"
int run_program(enum role role, int argc, char **argv);
int main(int argc, char **argv) { return run_program(CLIENT, argc, argv); }
