/* safetensors_file.c - checkpoints for tests. */
#include "tests/support/safetensors_file.h"

#include "base/check.h"
#include "base/file.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MAX = 1 << 28 };

void st_items_free(st_items *items)
{
    for (uint32_t i = 0; i < items->count; i++)
        free(items->items[i].data);
    free(items->items);
    *items = (st_items){0};
}

static st_item *append(st_items *items)
{
    if (items->count == items->capacity) {
        items->capacity = items->capacity > 0 ? items->capacity * 2 : 64;
        items->items = realloc(items->items, items->capacity * sizeof(*items->items));
        RT_ASSERT(items->items != NULL);
    }
    items->items[items->count] = (st_item){0};
    return &items->items[items->count++];
}

void st_items_add(st_items *items, const char *name, md_st_dtype dtype, uint32_t rows,
                  uint32_t cols, const void *data)
{
    st_item *item = append(items);

    RT_ASSERT(strlen(name) < sizeof(item->name));
    snprintf(item->name, sizeof(item->name), "%s", name);
    item->dtype = dtype;
    item->dims = rows > 0 ? 2 : 1;
    item->shape[0] = rows > 0 ? rows : cols;
    item->shape[1] = cols;
    item->bytes = (uint64_t)(rows > 0 ? rows : 1) * cols * md_st_dtype_bytes(dtype);
    item->data = malloc(item->bytes + 1);
    RT_ASSERT(item->data != NULL);
    memcpy(item->data, data, item->bytes);
}

st_item *st_items_find(st_items *items, const char *name)
{
    for (uint32_t i = 0; i < items->count; i++)
        if (strcmp(items->items[i].name, name) == 0) return &items->items[i];
    return NULL;
}

void st_items_remove(st_items *items, const char *name)
{
    st_item *item = st_items_find(items, name);

    RT_ASSERT(item != NULL);
    free(item->data);
    memmove(item, item + 1, (size_t)(items->items + items->count - (item + 1)) * sizeof(*item));
    items->count--;
}

/* ---- writing ---- */

/* Text that grows. */
typedef struct {
    char *text;
    size_t used, capacity;
} growing;

static void print(growing *out, const char *fmt, ...) RT_PRINTF(2, 3);

static void print(growing *out, const char *fmt, ...)
{
    char *piece = NULL;
    va_list args;
    int length;

    va_start(args, fmt);
    length = vasprintf(&piece, fmt, args);
    va_end(args);
    RT_ASSERT(length >= 0);
    while (out->used + (size_t)length + 1 > out->capacity) {
        out->capacity = out->capacity > 0 ? out->capacity * 2 : 4096;
        out->text = realloc(out->text, out->capacity);
        RT_ASSERT(out->text != NULL);
    }
    memcpy(out->text + out->used, piece, (size_t)length + 1);
    out->used += (size_t)length;
    free(piece);
}

static bool belongs(const st_item *item, uint32_t shard)
{
    return shard == ST_ALL_SHARDS || item->shard == shard;
}

static void print_header(const st_items *items, uint32_t shard, growing *out)
{
    uint64_t offset = 0;
    const char *separator = "";

    print(out, "{");
    for (uint32_t i = 0; i < items->count; i++) {
        const st_item *item = &items->items[i];

        if (!belongs(item, shard)) continue;
        print(out, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", separator, item->name,
              md_st_dtype_name(item->dtype));
        for (uint32_t d = 0; d < item->dims; d++)
            print(out, "%s%llu", d > 0 ? "," : "", (unsigned long long)item->shape[d]);
        print(out, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)offset,
              (unsigned long long)(offset + item->bytes));
        offset += item->bytes;
        separator = ",";
    }
    print(out, "}");
}

static void write_length(FILE *file, uint64_t length)
{
    for (int i = 0; i < 8; i++)
        RT_ASSERT(fputc((int)(length >> (8 * i) & 0xff), file) != EOF);
}

void st_items_write(const st_items *items, const char *path, uint32_t shard)
{
    growing header = {0};
    FILE *file = fopen(path, "wb");

    RT_ASSERT(file != NULL);
    print_header(items, shard, &header);
    write_length(file, header.used);
    RT_ASSERT(fwrite(header.text, 1, header.used, file) == header.used);
    for (uint32_t i = 0; i < items->count; i++)
        if (belongs(&items->items[i], shard))
            RT_ASSERT(fwrite(items->items[i].data, 1, items->items[i].bytes, file) ==
                      items->items[i].bytes);
    RT_ASSERT(fclose(file) == 0);
    free(header.text);
}

void st_items_write_in(const st_items *items, const char *dir, const char *name, uint32_t shard)
{
    char *path = rt_path_join(dir, name);

    st_items_write(items, path, shard);
    free(path);
}

void st_raw_write(const char *path, const char *header, uint64_t data_bytes)
{
    FILE *file = fopen(path, "wb");

    RT_ASSERT(file != NULL);
    write_length(file, strlen(header));
    RT_ASSERT(fwrite(header, 1, strlen(header), file) == strlen(header));
    RT_ASSERT(fclose(file) == 0);
    RT_ASSERT(truncate(path, (off_t)(8 + strlen(header) + data_bytes)) == 0);
}

/* ---- checkpoints ---- */

static int is_shard(const struct dirent *entry)
{
    return strncmp(entry->d_name, "model-", 6) == 0 &&
           strstr(entry->d_name, ".safetensors") != NULL;
}

st_checkpoint st_checkpoint_load(const char *fixtures, const char *name)
{
    st_checkpoint out = {0};
    struct dirent **list = NULL;
    int count;

    out.source = rt_path_join(fixtures, name);
    RT_ASSERT(out.source != NULL);
    count = scandir(out.source, &list, is_shard, alphasort);
    RT_ASSERT(count > 0);
    for (int s = 0; s < count; s++) {
        char *path = rt_path_join(out.source, list[s]->d_name);
        md_st_file *file = NULL;
        rt_status status = md_st_open(path, &file, NULL);

        RT_ASSERT(status == RT_OK);
        for (uint64_t t = 0; t < md_st_count(file); t++) {
            const md_st_tensor *tensor = md_st_at(file, t);
            st_item *item = append(&out.tensors);

            snprintf(item->name, sizeof(item->name), "%s", tensor->name);
            item->dtype = tensor->dtype;
            item->dims = tensor->dims;
            memcpy(item->shape, tensor->shape, sizeof(item->shape));
            item->bytes = tensor->bytes;
            item->shard = (uint32_t)s;
            item->data = malloc(item->bytes + 1);
            RT_ASSERT(item->data != NULL);
            status = md_st_read(file, tensor, 0, item->data, item->bytes, NULL);
            RT_ASSERT(status == RT_OK);
        }
        md_st_close(file);
        free(path);
        free(list[s]);
    }
    free(list);
    out.shard_count = (uint32_t)count;
    return out;
}

void st_checkpoint_free(st_checkpoint *checkpoint)
{
    st_items_free(&checkpoint->tensors);
    free(checkpoint->source);
}

static void write_index(const st_checkpoint *checkpoint, const char *dir)
{
    char *path = rt_path_join(dir, "model.safetensors.index.json");
    growing text = {0};
    rt_status status;

    print(&text, "{\"metadata\":{},\"weight_map\":{");
    for (uint32_t i = 0; i < checkpoint->tensors.count; i++)
        print(&text, "%s\"%s\":\"model-%05u-of-%05u.safetensors\"", i > 0 ? "," : "",
              checkpoint->tensors.items[i].name, checkpoint->tensors.items[i].shard + 1,
              checkpoint->shard_count);
    print(&text, "}}");
    status = rt_file_replace(path, text.text, text.used, NULL);
    RT_ASSERT(status == RT_OK);
    free(text.text);
    free(path);
}

void st_checkpoint_write(const st_checkpoint *checkpoint, const char *dir, bool with_index)
{
    static const char *const files[] = {"config.json", "generation_config.json", "tokenizer.json"};

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char *from = rt_path_join(checkpoint->source, files[i]);
        char *to = rt_path_join(dir, files[i]);

        test_file_copy(from, to);
        free(from);
        free(to);
    }
    for (uint32_t s = 0; s < checkpoint->shard_count; s++) {
        char name[64];
        char *path;

        snprintf(name, sizeof(name), "model-%05u-of-%05u.safetensors", s + 1,
                 checkpoint->shard_count);
        path = rt_path_join(dir, name);
        st_items_write(&checkpoint->tensors, path, s);
        free(path);
    }
    if (with_index) write_index(checkpoint, dir);
}

/* ---- files ---- */

void test_file_copy(const char *from, const char *to)
{
    char *data = NULL;
    size_t bytes = 0;
    rt_status status = rt_file_read(from, FILE_MAX, &data, &bytes, NULL);
    FILE *file;

    RT_ASSERT(status == RT_OK);
    file = fopen(to, "wb");
    RT_ASSERT(file != NULL);
    RT_ASSERT(fwrite(data, 1, bytes, file) == bytes);
    RT_ASSERT(fclose(file) == 0);
    free(data);
}

void test_folder_copy(const char *from, const char *to)
{
    struct dirent *entry;
    DIR *dir = opendir(from);

    RT_ASSERT(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        char *source = rt_path_join(from, entry->d_name);
        char *target = rt_path_join(to, entry->d_name);
        struct stat info;

        if (stat(source, &info) == 0 && S_ISREG(info.st_mode)) test_file_copy(source, target);
        free(source);
        free(target);
    }
    closedir(dir);
}

bool test_file_exists(const char *dir, const char *name)
{
    char *path = rt_path_join(dir, name);
    bool there = access(path, F_OK) == 0;

    free(path);
    return there;
}
