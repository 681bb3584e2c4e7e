/*
 * How received ranges and early data of a stream are searched, for the flavour linear. The linker puts this
 * function before picoquic's own (--wrap); the trees stay.
 */
#include "internal.h"

#include <picosplay.h>

#ifdef QUICBED_LINEAR
picosplay_node_t *__wrap_picosplay_find_previous(picosplay_tree_t *tree, void *value);

/* The last node that is not above a value, from the lowest on, as in a list. */
picosplay_node_t *__wrap_picosplay_find_previous(picosplay_tree_t *tree, void *value)
{
    picosplay_node_t *found = NULL;

    for (picosplay_node_t *node = picosplay_first(tree); node != NULL && tree->comp(tree->node_value(node), value) <= 0;
         node = picosplay_next(node))
        found = node;
    return found;
}
#endif
